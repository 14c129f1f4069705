"""The event log: the one account of what a job did. Imports neither torch nor metaflow."""
