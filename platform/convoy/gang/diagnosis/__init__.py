"""What an agent watches, and how a gang settles on the first cause of a failure."""
