"""What is checked before a run exists, so that what cannot work never starts."""
