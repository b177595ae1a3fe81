"""The process of a shard: its command line, its start and its end."""
