"""What outlives runs: a job's identity, its generations and their lineage. Imports neither torch nor metaflow."""
