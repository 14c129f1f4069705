"""The writer process of a rank, which writes, copies, verifies and prunes. Imports no torch."""
