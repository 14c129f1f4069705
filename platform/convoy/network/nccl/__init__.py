"""The network that NCCL used, as its own log proves it."""
