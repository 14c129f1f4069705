"""The comparisons that a benchmark makes, one suite per file."""
