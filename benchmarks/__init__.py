"""The benchmarks of Penstock: `python -m benchmarks` runs all of them and writes RESULTS.md again."""
