"""Triton kernels and their launchers. The public ops check the arguments, these trust them.

Conventions: rows and addresses are int64, sums are float32, constants that shape a kernel are in capitals. A constant
without a recorded measurement beside it is a first guess and says so.
"""
