"""The agent of a node: it starts the rank workers, sees how they end, and tells why. Never imports torch."""
