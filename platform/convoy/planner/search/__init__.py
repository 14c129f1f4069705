"""The best ways and machines to train a model."""
