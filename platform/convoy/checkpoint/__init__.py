"""Checkpoints: shards under unique names, and the commit object that makes them exist."""
