"""How often a gang is interrupted, what saves and restarts take, and how often to save: plain data, in seconds.

What nobody measured is assumed, each figure with its day and source. They were measured on two cores without a GPU; a
benchmark's checkpoint and recovery suites measure what takes their place.
"""

import math
from dataclasses import dataclass
from datetime import date
from typing import NamedTuple

from convoy.catalog.instances import instance as machine
from convoy.catalog.instances import interruption_band, mtbf_seconds
from convoy.checkpoint.writer.parts import part_pace as pace
from convoy.config.benchmark import CampaignConfig
from convoy.stats.interruptions import best_interval


class AssumedValue(NamedTuple):
    """A figure in place of a measurement."""

    value: float
    date: date
    source: str


_CHECKPOINT = "benchmarks/results/checkpoint.json, convoy, 2 ranks of 268 MB each"
_DRILLS = "benchmarks/results/drills.json, docs/guides/drills.md"

SAVED_BYTES_PER_STALL_SECOND = AssumedValue(4.91e9, date(2026, 11, 26), f"{_CHECKPOINT}: extra_window, median of 24")
"""Bytes of one rank, over what a save adds to the steps around it. On a GPU the copy to host memory decides."""

RESTORED_BYTES_PER_SECOND = AssumedValue(6.20e8, date(2026, 11, 26), f"{_CHECKPOINT}: restore, median of 24")
"""Rate of one rank, from a local disk, with checks."""

RESTART_SECONDS = AssumedValue(4.73, date(2026, 11, 22), f"{_DRILLS}: node-kill, recovered, median of 30")
"""From an interruption to the first step of the next attempt, of a model whose state takes no time to read. Neither a
machine's start nor that of an image is in it, nor compilation."""

NOTICED_SECONDS = AssumedValue(1.02, date(2026, 11, 22), f"{_DRILLS}: spot-notice, detected, longest of 30")
"""Until all of a gang know of a notice."""

GPU_FAULT_SECONDS = AssumedValue(
    54 * 86400 * 16384 / 419, date(2024, 7, 31), "419 unexpected interruptions in 54 days of 16,384 H100: "
    "Llama 3 405B (arXiv 2407.21783, table 5)",
)  # fmt: skip
"""Mean time until something of one GPU, its machine or its job breaks: 5.8 years. Other clusters differ."""

_CAMPAIGN, _CONFIG = CampaignConfig(), "default of recovery.campaign"

REPLACEMENT_SECONDS = AssumedValue(_CAMPAIGN.replacement_seconds, date(2026, 11, 23), _CONFIG)
"""Until there is another machine in place of one that was reclaimed."""

ANNOUNCED = AssumedValue(_CAMPAIGN.announced_share, date(2026, 11, 23), _CONFIG)
"""Share of interruptions that have notice."""

NOTICE_SECONDS = AssumedValue(_CAMPAIGN.notice_seconds, date(2026, 11, 23), f"{_CONFIG}: EC2's two minutes")
"""From a spot notice until the machine goes."""


class InterruptionRate(NamedTuple):
    """How often a gang is interrupted."""

    mtbf_seconds: float
    """Mean time between them; infinite: there are none."""
    notice_used: float
    """Share of them before which there is time for a last save, if none is being written."""


@dataclass(frozen=True)
class Drain:
    """The last save, after a notice."""

    before_seconds: float
    """Until it begins: the notice is seen, and the step under way is done."""
    write_seconds: float
    """Until it is durable; nothing limits it, and nothing trains meanwhile."""

    def spare_seconds(self, notice_seconds: float) -> float:
        """Between its end and that of the machine; negative: it comes too late."""
        return notice_seconds - self.before_seconds - self.write_seconds


@dataclass(frozen=True)
class FailureModel:
    """A gang stops for each of its machines that is reclaimed or breaks, whichever it is."""

    nodes: int
    low: float = 0.0
    """Share of such machines that are reclaimed within a month: the lower end of what is known."""
    high: float = 0.0
    """The upper end. Both 0: none is."""
    reclaim_seconds: float | None = None
    """Mean time until one of the gang's machines is reclaimed, where that is known, in place of both."""
    faults_seconds: float = math.inf
    """Mean time until something of the gang breaks, on machines that nobody takes away, too: without notice."""
    notice_seconds: float = NOTICE_SECONDS.value
    """From a notice until the machine is gone."""
    announced: float = ANNOUNCED.value
    """Share of machines that are reclaimed which have notice; EC2 gives it as far as it can."""
    drain: Drain | None = None
    """What is done with it; None: nothing."""

    def __post_init__(self) -> None:
        if not (0 <= self.low <= self.high < 1 and 0 <= self.announced <= 1 and self.nodes >= 1):
            raise ValueError(f"{self}: shares must be from 0 to 1, low not above high, and nodes at least 1")
        if not (self.faults_seconds > 0 and (self.reclaim_seconds is None or self.reclaim_seconds > 0)):
            raise ValueError(f"{self}: times between interruptions must be more than 0")

    @property
    def lowest_rate(self) -> InterruptionRate:
        """At most so seldom."""
        return self.rate_if_reclaimed_every(self._reclaim_seconds_at(self.low))

    @property
    def highest_rate(self) -> InterruptionRate:
        """At most so often: what an interval is chosen for."""
        return self.rate_if_reclaimed_every(self._reclaim_seconds_at(self.high))

    def rate_if_reclaimed_every(self, reclaim_seconds: float) -> InterruptionRate:
        """Were a machine reclaimed so often, and broke as often as it does."""
        taken, both = 1 / reclaim_seconds, 1 / reclaim_seconds + 1 / self.faults_seconds
        if not both:
            return InterruptionRate(math.inf, 0.0)
        in_time = self.drain is not None and self.drain.spare_seconds(self.notice_seconds) >= 0
        return InterruptionRate(1 / both, self.announced * taken / both if in_time else 0.0)

    def _reclaim_seconds_at(self, monthly_share: float) -> float:
        if self.reclaim_seconds is not None:
            return self.reclaim_seconds
        return mtbf_seconds(monthly_share, self.nodes) if monthly_share else math.inf


@dataclass(frozen=True)
class SaveCost:
    """Cost of a periodic save."""

    stall_seconds: float
    """How long it stops training."""
    durable_seconds: float
    """From its beginning until it is durable."""

    def __post_init__(self) -> None:
        if not (self.stall_seconds > 0 and self.durable_seconds >= 0):
            raise ValueError(f"{self}: stall_seconds must be more than 0, durable_seconds at least 0")

    @property
    def lag_seconds(self) -> float:
        """From the end of the stall."""
        return max(0.0, self.durable_seconds - self.stall_seconds)


@dataclass(frozen=True)
class RestartCost:
    """What follows an interruption."""

    seconds: float
    """From when all machines are there until work resumes: processes, and the state that is read."""
    wait_seconds: float = REPLACEMENT_SECONDS.value
    """Until there is another machine."""


def hardware_failures(instance: str, nodes: int) -> FailureModel:
    """Machines on demand, or in a capacity block: they break as those did that the assumption is of. Of machines
    without a GPU nothing is assumed. Raises ConfigError for a type that the catalog does not have."""
    gpus = machine(instance).gpus * nodes
    faults = GPU_FAULT_SECONDS.value / gpus if gpus else math.inf
    return FailureModel(nodes, faults_seconds=faults)


def spot_failures(instance: str, nodes: int, drain: Drain | None = None) -> FailureModel | None:
    """The same, and reclaimed as the catalog has it; None: nothing is known of this type. drain: as in
    `FailureModel`."""
    rates, steady = interruption_band(instance), hardware_failures(instance, nodes)
    if rates is None:
        return None
    return FailureModel(nodes, rates.low, rates.high, faults_seconds=steady.faults_seconds, drain=drain)


def expected_drain(state_bytes: float, nodes: int, bytes_per_second: float, step_seconds: float) -> Drain:
    """bytes_per_second: that one machine can write to the job's root while all others do too. All machines write: the
    one that goes has as much time as its notice gives, and all of them finish together."""
    return Drain(NOTICED_SECONDS.value + step_seconds, state_bytes / (nodes * bytes_per_second))


def best_save_interval(failures: FailureModel, saving: SaveCost) -> float:
    """Seconds of work between two saves that lose least, at the upper end of how often machines are reclaimed.

    Only interruptions that lose work make saves worth their stall: Young's sqrt(2 C M / (1 - p)), by Daly's
    higher-order estimate, for a stall C, a mean time between interruptions M and notices that are used in a share p of
    them. (A notice with no time for a last save behind the one under way loses an interval; but the longer that is,
    the more seldom it happens: it makes no difference here.) Never more than M, for nobody should rely on notices
    alone, and long enough that each save is durable before the next begins. Infinite where nothing interrupts.
    """
    mtbf, used = failures.highest_rate
    if math.isinf(mtbf):
        return math.inf
    best = mtbf if used == 1 else min(mtbf, best_interval(saving.stall_seconds, mtbf / (1 - used)))
    return max(best, saving.lag_seconds)


def interval_in_steps(interval: float, step_seconds: float) -> int:
    """`checkpoint.every_steps` for an interval, which must be finite."""
    return max(1, round(interval / step_seconds))


def assumed_save(state_bytes: float, ranks: int, rate_cap: float | None, root_rate: float | None = None) -> SaveCost:
    """rate_cap: bytes per second that a rank may write while it trains, as `checkpoint.write_mb_per_second` has it.
    root_rate: bytes per second that the root takes of all machines together. None: no limit."""
    part = state_bytes / ranks
    rate = pace(rate_cap, math.ceil(part))
    durable = max(part / rate if rate else 0.0, state_bytes / root_rate if root_rate else 0.0)
    stall = part / SAVED_BYTES_PER_STALL_SECOND.value
    return SaveCost(stall, stall + durable)


def assumed_restart(state_bytes: float, ranks: int, root_rate: float | None = None) -> RestartCost:
    """root_rate: bytes per second that the root gives all machines together; None: no limit."""
    by_rank = state_bytes / ranks / RESTORED_BYTES_PER_SECOND.value
    by_storage = state_bytes / root_rate if root_rate else 0.0
    return RestartCost(RESTART_SECONDS.value + max(by_rank, by_storage))
