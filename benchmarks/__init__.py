"""What Penstock reaches, measured: `python -m benchmarks` runs everything and renews RESULTS.md."""
