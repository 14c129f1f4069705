"""The metrics of a running gang: which there are, and the endpoint of each node that serves them."""
