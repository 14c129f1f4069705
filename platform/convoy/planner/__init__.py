"""What a run will need, take and cost, before it starts. Imports neither torch nor metaflow."""
