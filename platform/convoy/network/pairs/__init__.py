"""Links between pairs of ranks, and which of them are slow."""
