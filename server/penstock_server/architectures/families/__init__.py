"""Rows of families: data, and where a model_type stands for several architectures, the choice between them."""
