"""What other tools say of a network: one reader for each of their formats. Pure."""
