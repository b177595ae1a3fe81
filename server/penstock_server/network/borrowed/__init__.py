"""Models that the code of transformers computes, with our attention and our cache."""
