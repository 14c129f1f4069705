"""What a rank measures: the time of its steps, and what its machine can do."""
