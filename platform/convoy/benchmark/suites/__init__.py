"""What a benchmark compares, one suite a file."""
