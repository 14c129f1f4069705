"""What the figures of a page imply of each other and of the hardware's limits. Imports neither torch nor metaflow."""
