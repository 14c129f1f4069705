"""How the training loop saves and restores its state."""
