"""What the figures of a page imply of each other, by subject."""
