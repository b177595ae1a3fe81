"""Ops in C for the CPU, much faster there than the reference. They are compiled when the package is built.

Without a C compiler at that time, or on a machine that cannot load the result, the reference computes everything.
"""
