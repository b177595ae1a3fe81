"""Model families as rows of facts, and the one decoder that they describe."""
