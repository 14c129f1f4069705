"""Whether a gang that is given notice can save all it has done before its machine is gone."""

from dataclasses import dataclass

from convoy.planner.cost import defaults


@dataclass(frozen=True)
class Drain:
    """The last save, after a notice."""

    before_seconds: float
    """Until it begins: the notice is seen, and the step under way is done."""
    write_seconds: float
    """Until it is durable; nothing holds it back, and nothing trains beside it."""

    def spare_seconds(self, notice_seconds: float) -> float:
        """Between its end and that of the machine; negative: it comes too late."""
        return notice_seconds - self.before_seconds - self.write_seconds


def drain(state_bytes: float, nodes: int, bytes_per_second: float, step_seconds: float) -> Drain:
    """bytes_per_second: that one machine can write to the job's root while all others do too. All machines write: the
    one that goes has as much time as its notice gives, and all of them finish together."""
    return Drain(defaults.NOTICED_SECONDS.value + step_seconds, state_bytes / (nodes * bytes_per_second))


def least_bytes_per_second(state_bytes: float, nodes: int, step_seconds: float, notice_seconds: float) -> float | None:
    """That each machine must write to the root for a drain to finish in time; None: no rate is enough."""
    left = notice_seconds - defaults.NOTICED_SECONDS.value - step_seconds
    return state_bytes / nodes / left if left > 0 else None
