"""What a training run is expected to take on machines that fail or are reclaimed, some of them with notice."""

import math
from dataclasses import dataclass

from convoy.planner.cost.failures import FailureModel, InterruptionRate, RestartCost, SaveCost
from convoy.stats.interruptions import InterruptionKind, long_run_shares

MIN_PRODUCTIVE = 1e-4
"""Share of productive time below which nobody waits for the end."""


@dataclass(frozen=True)
class Campaign:
    """Expected seconds of a training run; the parts make up all of its time."""

    productive: float
    """Work that is not done again."""
    stalled: float
    """Training waits for saves."""
    recomputed: float
    """Work that is lost."""
    draining: float
    """The last saves after notices."""
    waiting: float
    """No machine has replaced the lost one yet."""
    restarting: float
    interruptions: float
    saves: float
    """Periodic ones, and those after notices."""
    resumed: float = 1.0
    """Share of interruptions after which work resumes before the next one."""

    @property
    def part_seconds(self) -> dict[str, float]:
        """Seconds by what they are; together `seconds`."""
        names = ("productive", "stalled", "recomputed", "draining", "waiting", "restarting")
        return {name: getattr(self, name) for name in names}

    @property
    def down_seconds(self) -> float:
        """From interruptions until work resumes."""
        return self.draining + self.waiting + self.restarting

    @property
    def seconds(self) -> float:
        return sum(self.part_seconds.values())

    @property
    def overhead(self) -> float:
        """All other time over the productive time."""
        return self.seconds / self.productive - 1


def expected_campaign(
    work_seconds: float,
    rate: InterruptionRate,
    interval: float,
    failures: FailureModel,
    saving: SaveCost,
    restart: RestartCost,
) -> Campaign:
    """A training of so many seconds of work.

    rate: one of those of `failures`. interval: seconds of work between two saves; infinite only where nothing
    interrupts, and the only save is at the end. Raises ValueError where the work would hardly ever end.
    """
    mtbf, used = rate
    if math.isinf(interval) and math.isinf(mtbf):
        return Campaign(work_seconds, 0.0, 0.0, 0.0, 0.0, 0.0, interruptions=0.0, saves=0.0)
    after = (0.0, restart.wait_seconds, restart.seconds)
    kinds = (InterruptionKind(1 - used, False, after), _drained_interruptions(used, failures, interval, saving, after))
    shares = long_run_shares(interval, saving.stall_seconds, mtbf, kinds, after, saving.lag_seconds)
    if shares.productive < MIN_PRODUCTIVE:
        raise ValueError(
            f"an interruption every {mtbf:.0f} s leaves {shares.productive:.2g} of the time for {work_seconds:.0f}"
            " s of work: it would hardly ever end"
        )
    seconds = work_seconds / shares.productive
    interruptions = seconds / mtbf
    return Campaign(
        productive=work_seconds,
        stalled=seconds * shares.stalled,
        recomputed=seconds * shares.recomputed,
        draining=seconds * shares.down[0],
        waiting=seconds * shares.down[1],
        restarting=seconds * shares.down[2],
        interruptions=interruptions,
        saves=seconds * shares.stalled / saving.stall_seconds + interruptions * shares.interrupted * used,
        resumed=shares.interrupted,
    )


def _drained_interruptions(
    share: float, failures: FailureModel, interval: float, saving: SaveCost, down_seconds: tuple[float, ...]
) -> InterruptionKind:
    """Interruptions with enough notice. The last save waits for one that is being written, and hurries it: what is left
    of that takes anything from nothing to a whole write. Where there is no time for both there is no last save."""
    if failures.drain is None or not share:
        return InterruptionKind(0.0, True, down_seconds)
    write, spare = failures.drain.write_seconds, failures.drain.spare_seconds(failures.notice_seconds)
    in_time = min(1.0, spare / write) if write else 1.0
    exposed = saving.durable_seconds * (1 - in_time)
    writing = min(1.0, saving.durable_seconds / (interval + saving.stall_seconds))
    seconds = write * (1 - writing * (1 - in_time)) + writing * in_time * min(write, spare) / 2
    return InterruptionKind(share, True, (seconds, *down_seconds[1:]), exposed)
