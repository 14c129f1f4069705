"""Filling a state from a commit, with every byte checked."""
