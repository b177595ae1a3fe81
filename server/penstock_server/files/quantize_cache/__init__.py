"""The cache of weights that were quantized at load. Reads and writes no tensor."""
