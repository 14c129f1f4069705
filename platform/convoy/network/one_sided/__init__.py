"""One-sided transfers by NIXL."""
