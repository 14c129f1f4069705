"""What a node's hardware does while a gang runs: its GPUs, cores, memory and adapters, sampled by a thread."""
