"""What a GPU is measured with: parts that run on a bare machine, one line for every result (see HOPPER.md)."""
