"""What NCCL used to carry traffic, by its own log."""
