"""The functions that callers import: one per op. Each checks its arguments and lets the table choose who computes."""
