"""How often to save, and what saves and restarts take where nobody measured them."""

import math

from convoy.checkpoint.writer.parts import bytes_per_second as pace
from convoy.planner.cost import defaults
from convoy.planner.cost.failures import Failures, Restart, Saving
from convoy.stats.interruptions import best_interval


def best_save_interval(failures: Failures, saving: Saving) -> float:
    """Seconds of work between two saves that lose least, at the upper end of how often machines are taken away.

    Only interruptions that lose work make saves worth their stall: Young's sqrt(2 C M / (1 - p)), by Daly's
    higher-order estimate, for a stall C, a mean time between interruptions M and notices that are used in a share p of
    them. (A notice with no time for a last save behind the one under way loses an interval; but the longer that is,
    the more seldom it happens: it makes no difference here.) Never more than M, for nobody should rely on notices
    alone, and long enough that each save is durable before the next begins. Infinite where nothing interrupts.
    """
    mtbf, used = failures.often
    if math.isinf(mtbf):
        return math.inf
    best = mtbf if used == 1 else min(mtbf, best_interval(saving.stall_seconds, mtbf / (1 - used)))
    return max(best, saving.lag_seconds)


def in_steps(interval: float, step_seconds: float) -> int:
    """`checkpoint.every_steps` for an interval, which must be finite."""
    return max(1, round(interval / step_seconds))


def assumed_saving(state_bytes: float, ranks: int, paced: float | None, storage: float | None = None) -> Saving:
    """paced: bytes per second that a rank may write while it trains, as `checkpoint.write_mb_per_second` has it.
    storage: bytes per second that the root takes of all machines together. None: no limit."""
    part = state_bytes / ranks
    rate = pace(paced, math.ceil(part))
    durable = max(part / rate if rate else 0.0, state_bytes / storage if storage else 0.0)
    stall = part / defaults.SAVED_BYTES_PER_STALL_SECOND.value
    return Saving(stall, stall + durable)


def assumed_restart(state_bytes: float, ranks: int, storage: float | None = None) -> Restart:
    """storage: bytes per second that the root gives all machines together; None: no limit."""
    by_rank = state_bytes / ranks / defaults.RESTORED_BYTES_PER_SECOND.value
    by_storage = state_bytes / storage if storage else 0.0
    return Restart(defaults.RESTART_SECONDS.value + max(by_rank, by_storage))
