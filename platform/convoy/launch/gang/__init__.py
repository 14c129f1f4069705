"""The step that a gang runs in, on each node."""
