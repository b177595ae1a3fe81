"""What computes: layers, the decoder over them, models of transformers, and the paged cache that they fill."""
