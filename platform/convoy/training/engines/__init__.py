"""Ways to train a model: Convoy's own, and other libraries behind the same interface."""
