"""What a decode step costs on a shard beside its computation: by part, and by thread over the socket."""
