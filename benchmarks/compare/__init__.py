"""Compares Penstock with other servers on the same CPU, model and load, in one run: `python -m benchmarks compare`."""
