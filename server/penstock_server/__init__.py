"""One shard of Penstock: a process that holds a slice of the weights and a paged KV cache, and runs steps.

It knows slots and blocks, never requests or text. `python -m penstock_server` starts it; importing has no effects.
"""

__version__ = "0.1.0"
