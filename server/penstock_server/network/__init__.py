"""The computation of the model: layers, the decoder over them, models of transformers, and their paged cache."""
