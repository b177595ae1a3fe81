"""Blocks of the cache that go from the shards of one replica to those of another, beside the wire to the router."""
