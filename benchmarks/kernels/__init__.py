"""Times the kernels on a GPU."""
