"""The demo model: makes its own training text, trains on it, evaluates, and ships.

Nothing here runs when Penstock serves; only the files that `demo.build` writes do.
"""
