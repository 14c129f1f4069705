"""Names of `Case.values` that readers of results know; docs/benchmarks.md has them with their units."""

WEAK = "weak"
"""Suite scaling. 1: the work grows with the ranks, tokens per rank stay; 0: strong, all ranks share the work of one. A
case of one rank without it is the reference of both."""

INDEPENDENT = "independent"
"""Suite scaling. 1: as many jobs of one rank as the case has ranks, at the same time, none of which talks to another:
what they lose beside one alone is memory bandwidth, caches and clock rate, and not communication."""

COMMUNICATION_SECONDS = "communication_seconds"
"""Suite scaling. Part of a step in which a rank only waits for communication: what computation does not hide."""

NETWORK_BYTES = "network_bytes"
"""Suite scaling. Sent by one rank in a step."""

LINK_BYTES_PER_SECOND = "link_bytes_per_second"
"""Suite scaling. What a rank's link carried in a measurement of nothing else."""

STATE_BYTES = "state_bytes"
"""Suite strategies. Weights and optimizer state that rank 0 holds between two steps; no gradients, no buffers."""

LARGEST_MODEL_PARAMETERS = "largest_model_parameters"
"""Suite strategies. Of the largest model that fits."""
