"""How often a gang is interrupted, what it can save before, and what follows: plain data, in seconds."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from convoy.catalog.instances import instance as machine
from convoy.catalog.instances import interruptions, mtbf_seconds
from convoy.planner.cost import defaults


class Rate(NamedTuple):
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
class Failures:
    """A gang stops for each of its machines that is taken away or breaks, whichever it is."""

    nodes: int
    low: float = 0.0
    """Share of such machines that are taken away within a month: the lower end of what is known."""
    high: float = 0.0
    """The upper end. Both 0: none is."""
    taken_seconds: float | None = None
    """Mean time until one of the gang's machines is taken away, where that is known, in place of both."""
    faults_seconds: float = math.inf
    """Mean time until something of the gang breaks, on machines that nobody takes away, too: without notice."""
    notice_seconds: float = defaults.NOTICE_SECONDS.value
    """From a notice until the machine is gone."""
    announced: float = defaults.ANNOUNCED.value
    """Share of machines that are taken away which have notice; EC2 gives it as far as it can."""
    drain: Drain | None = None
    """What is done with it; None: nothing."""

    def __post_init__(self) -> None:
        if not (0 <= self.low <= self.high < 1 and 0 <= self.announced <= 1 and self.nodes >= 1):
            raise ValueError(f"{self}: shares must be from 0 to 1, low not above high, and nodes at least 1")
        if not (self.faults_seconds > 0 and (self.taken_seconds is None or self.taken_seconds > 0)):
            raise ValueError(f"{self}: times between interruptions must be more than 0")

    @property
    def rare(self) -> Rate:
        """At most so seldom."""
        return self.every(self._taken(self.low))

    @property
    def often(self) -> Rate:
        """At most so often: what an interval is chosen for."""
        return self.every(self._taken(self.high))

    def every(self, taken_seconds: float) -> Rate:
        """Were a machine taken away so often, and broke as often as it does."""
        taken, both = 1 / taken_seconds, 1 / taken_seconds + 1 / self.faults_seconds
        if not both:
            return Rate(math.inf, 0.0)
        in_time = self.drain is not None and self.drain.spare_seconds(self.notice_seconds) >= 0
        return Rate(1 / both, self.announced * taken / both if in_time else 0.0)

    def _taken(self, share: float) -> float:
        if self.taken_seconds is not None:
            return self.taken_seconds
        return mtbf_seconds(share, self.nodes) if share else math.inf


@dataclass(frozen=True)
class Saving:
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
class Restart:
    """What follows an interruption."""

    seconds: float
    """From when all machines are there until work resumes: processes, and the state that is read."""
    wait_seconds: float = defaults.REPLACEMENT_SECONDS.value
    """Until there is another machine."""


def never_taken(instance: str, nodes: int) -> Failures:
    """Machines on demand, or in a capacity block: they break as those did that the assumption is of. Of machines
    without a GPU nothing is assumed. Raises ConfigError for a type that the catalog does not have."""
    gpus = machine(instance).gpus * nodes
    faults = defaults.GPU_FAULT_SECONDS.value / gpus if gpus else math.inf
    return Failures(nodes, faults_seconds=faults)


def on_spot(instance: str, nodes: int, drain: Drain | None = None) -> Failures | None:
    """The same, and taken away as the catalog has it; None: nothing is known of this type. drain: as of `Failures`."""
    rates, steady = interruptions(instance), never_taken(instance, nodes)
    if rates is None:
        return None
    return Failures(nodes, rates.low, rates.high, faults_seconds=steady.faults_seconds, drain=drain)


def drain(state_bytes: float, nodes: int, bytes_per_second: float, step_seconds: float) -> Drain:
    """bytes_per_second: that one machine can write to the job's root while all others do too. All machines write: the
    one that goes has as much time as its notice gives, and all of them finish together."""
    return Drain(defaults.NOTICED_SECONDS.value + step_seconds, state_bytes / (nodes * bytes_per_second))
