"""The agent of a node: it starts the rank workers, sees how they end, and reports why. Never imports torch."""
