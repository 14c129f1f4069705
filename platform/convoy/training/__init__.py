"""The training loop of one rank, from its assignment to the last commit."""
