"""What no formula of a step has. Imports no torch."""

from convoy.config.run import RunConfig


def unmodelled(config: RunConfig) -> str:
    """Of this configuration; empty: nothing. What its steps take says nothing of the formulas then."""
    if not config.data.packing:
        return "padded samples are not planned"
    if not config.optimizer.fused:
        return "AdamW that is not fused is not planned"
    if not config.train.prefetch_steps:
        return "batches that are not made ahead are not planned"
    return ""
