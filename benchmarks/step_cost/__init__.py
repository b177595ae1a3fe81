"""The cost of a decode step on a shard beside its computation: by part, and by thread over the socket."""
