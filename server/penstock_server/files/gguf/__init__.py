"""Models in GGUF files: read and checked, and described by a small folder such as others have. No torch."""
