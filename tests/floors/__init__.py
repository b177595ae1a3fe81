"""Reads which file imports which, in Python and in Rust, and compares that with the floors of `table`."""
