"""Facts of models: a family's row and a config.json together are a `ModelSpec`. No torch."""
