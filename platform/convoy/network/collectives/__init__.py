"""Collectives as data and as calls: algorithms, their check, their executor, and exact contributions."""
