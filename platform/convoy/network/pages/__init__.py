"""Pages of the `convoy net` commands."""
