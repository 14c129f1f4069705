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

LARGEST_MODEL_PARAMETERS = "largest_model_parameters"
"""Suite strategies. Of the largest model that fits."""

MEMORY_PARTS = {
    "parameters": "memory_parameters_bytes",
    "optimizer": "memory_optimizer_bytes",
    "gradients": "memory_gradients_bytes",
    "step": "memory_step_bytes",
}
"""Every suite. What `memory_peak_bytes` is made of, by part: weights, optimizer state and gradients that a rank holds
between steps, and what a step takes on top at its peak."""

MEMORY_HOST_BYTES = "memory_host_bytes"
"""Every suite. What a rank on a GPU holds in host memory of weights, gradients and optimizer state."""

MEMORY_FRAGMENTATION = "memory_fragmentation"
"""Every suite, on a GPU. Of what the allocator took from it for a step, the share that no tensor used at the peak."""
