"""Which files one request passes, measured: `python -m benchmarks.way`."""
