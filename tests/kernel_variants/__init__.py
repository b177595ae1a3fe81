"""The variants of Triton kernels that launches need: recorded under the interpreter, compiled without a GPU."""
