"""Results of a benchmark: one JSON file for each case. Imports neither torch nor metaflow."""
