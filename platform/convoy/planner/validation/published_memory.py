"""Memory of runs that others measured, with their software: each of them ran, and so it fit."""

from dataclasses import replace
from typing import TYPE_CHECKING

from convoy.planner.memory.gpu import RELIABLE_SHARE, Memory, memory
from convoy.planner.workload import Workload

if TYPE_CHECKING:
    from convoy.planner.validation.published import Measured


def memory_of(row: "Measured") -> Memory:
    """As `memory`, with the loss of the run's software, and with whole blocks where it computes such again."""
    job, fused, share = row.workload, row.kernels.fused_loss, row.kernels.whole_blocks
    if share is None:
        return memory(job, fused_loss=fused)
    none, full = (memory(_recomputing(job, mode), fused_loss=fused) for mode in ("none", "full"))
    parts = {part: round((1 - share) * none.parts[part] + share * full.parts[part]) for part in none.parts}
    return replace(none, parts=parts)


def blocks_that_fit(job: Workload) -> float:
    """Least share of blocks that must be computed again as a whole for a run to fit well; 1 if it never does."""
    none, full = (memory(_recomputing(job, mode)).share for mode in ("none", "full"))
    return min(1.0, max(0.0, (none - RELIABLE_SHARE) / (none - full))) if none > full else 0.0


def _recomputing(job: Workload, mode: str) -> Workload:
    return replace(job, train=job.train.model_copy(update={"activation_checkpointing": mode}))
