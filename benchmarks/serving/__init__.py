"""Figures of a whole server on the CPU; one file per question, each with `measure() -> list[Figure]`."""
