"""From settings and a model folder to an engine that is ready."""
