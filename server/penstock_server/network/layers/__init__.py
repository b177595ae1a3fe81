"""Building blocks of the decoder. Each knows its slice of the weights and where in the checkpoint it comes from."""
