"""What a benchmark measured, as it is kept: one JSON file for each case. Imports neither torch nor metaflow."""
