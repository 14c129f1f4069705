"""Saving on each rank: from the staged state to its commit."""
