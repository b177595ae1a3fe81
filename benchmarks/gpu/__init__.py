"""The benchmarks on a GPU: parts that run on a bare machine and write one line for every result (see HOPPER.md)."""
