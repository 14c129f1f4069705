"""Several networks between the same hosts, and what is sent over which of them."""
