"""Names of `Case.values` that readers of results know; docs/benchmarks.md has them with their units."""

WEAK = "weak"
"""Suite scaling. 1: the work grows with the ranks, tokens per rank stay; 0: strong, all ranks share the work of the
fewest. The case without it and without `independent` is the reference of both: of one rank, or as few as have room."""

INDEPENDENT = "independent"
"""Suite scaling. 1: as many jobs of the reference's size as its ranks make, at the same time, none of which talks to
another:
what they lose beside one alone is memory bandwidth, caches and clock rate, and not communication."""

COMMUNICATION_SECONDS = "communication_seconds"
"""Suite scaling. Part of a step in which a rank only waits for communication: what computation does not hide."""

NETWORK_BYTES = "network_bytes"
"""Suite scaling. Sent by one rank in a step."""

LINK_BYTES_PER_SECOND = "link_bytes_per_second"
"""Suite scaling. What a rank's link carried in a measurement of nothing else: bus bandwidth of large all-gathers."""

LARGEST_MODEL_PARAMETERS = "largest_model_parameters"
"""Suite strategies. Of the largest model that fits."""

RDMA_CLAIMED = "rdma_claimed"
"""Suite sync. 1: the environment was said to have RDMA, and the one that it is compared with has none."""
