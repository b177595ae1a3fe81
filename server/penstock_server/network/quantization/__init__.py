"""Quantized checkpoints: a file for each format, which maps its tensors to a family of weights of few bits."""
