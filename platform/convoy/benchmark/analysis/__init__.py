"""The figures of a benchmark, computed from its cases. Pure."""
