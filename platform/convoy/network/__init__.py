"""The network between ranks: what it carries, how fast, and what carried it."""
