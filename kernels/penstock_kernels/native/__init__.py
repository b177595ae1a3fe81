"""Ops in C for the CPU, where the plain twins are much slower than the machine: compiled when the package is built.

Without a C compiler at that time, or on a machine that cannot load the result, everything runs on the twins.
"""
