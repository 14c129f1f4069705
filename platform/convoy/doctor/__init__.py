"""What this machine can do and what is wrong with it: `convoy doctor`."""
