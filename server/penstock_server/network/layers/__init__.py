"""Layers of the decoder. Each has this rank's part of its weights and says where in the checkpoint it comes from."""
