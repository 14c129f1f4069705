"""Seconds of a step that its collectives take where nothing hides them: each of `communication.py`, by measured lines.

On CPUs that is all of them: FSDP2 puts what it prefetches and reduces on streams of its own, of which a CPU has none,
and waits for each call. docs/planner.md#machines-that-the-catalog-does-not-know has the source and the measurement.
"""

from dataclasses import dataclass

from convoy.catalog.measured import Line, MeasuredMachine
from convoy.model.counts import parameter_count
from convoy.planner.communication import Collective, communication
from convoy.planner.units import WIDTH
from convoy.planner.workload import Workload


@dataclass(frozen=True)
class Exposed:
    """Seconds of one step, of the rank that sends most."""

    gather: float = 0.0
    reduce: float = 0.0
    tensor: float = 0.0
    """Activations that ranks add up or hand on, and the two numbers that all ranks add up."""
    moved: float = 0.0
    """Bytes of weights and gradients that FSDP2 casts, packs and unpacks in a rank's memory, also where it is alone."""

    @property
    def total(self) -> float:
        """Seconds."""
        return self.gather + self.reduce + self.tensor


def exposed(job: Workload, machine: MeasuredMachine) -> Exposed:
    """Raises ValueError where several ranks train and one measured: nothing is known of what is between them."""
    seconds = {"weights": 0.0, "gradients": 0.0, "activations": 0.0, "loss and norm": 0.0}
    for collective in communication(job):
        seconds[collective.what] += collective.number * _line(collective, machine).seconds(collective.bytes)
    others = seconds["activations"] + seconds["loss and norm"]
    return Exposed(seconds["weights"], seconds["gradients"], others, _moved(job))


def _moved(job: Workload) -> float:
    """As if there were always someone to send it to."""
    train, weights = job.train, parameter_count(job.model) / job.parallel.shared_by
    gathers = 2 if job.parallel.reshard_after_forward else 1
    reductions = job.passes if job.parallel.reduce_every_pass else 1
    return weights * (job.passes * gathers * WIDTH[train.param_dtype] + reductions * WIDTH[train.reduce_dtype])


def with_more_ranks(job: Workload, machine: MeasuredMachine, alone_seconds: float, optimizer_seconds: float) -> float:
    """Seconds of a step of the job's ranks, from that of one rank alone with as many sequences as each of them has.

    alone_seconds: of its step, beside as many others as there will be, so that what ranks of a host share is shared.
    optimizer_seconds: the part of it that is the update, of which each rank has a share then. Raises ValueError as
    `exposed`.
    """
    return alone_seconds - optimizer_seconds * (1 - 1 / job.shards) + exposed(job, machine).total


def on_link(line: Line, bytes_per_second: float, ranks: int) -> Line:
    """The line of a gather or a reduce-scatter where each of its ranks has a link of its own that carries so much of a
    message each way. line: where nothing limits it: what the ranks' own cores take, of which the link hides nothing."""
    carried = bytes_per_second * ranks / (ranks - 1)
    rate = 1 / (1 / line.bytes_per_second + 1 / carried)
    return Line(latency_seconds=line.latency_seconds, bytes_per_second=rate)


def _line(collective: Collective, machine: MeasuredMachine) -> Line:
    """By which a collective takes its time, at its own number of ranks: a ring has as many hops, and carries a share of
    (n - 1) / n of a message through each link."""
    if machine.gather is None or machine.reduce is None or machine.ranks == 1:
        raise ValueError(f"{machine.device}: one rank measured it, so nothing is known of what {collective.ranks} send")
    measured, asked = machine.ranks, collective.ranks
    hops = (asked - 1) / (measured - 1)
    share = (measured - 1) / measured * asked / (asked - 1)
    line = {"all_gather": machine.gather, "send": machine.gather, "reduce_scatter": machine.reduce}.get(collective.kind)
    if line is None:
        line = machine.all_reduce or _both(machine.gather, machine.reduce)
    return Line(latency_seconds=hops * line.latency_seconds, bytes_per_second=share * line.bytes_per_second)


def _both(gather: Line, reduce: Line) -> Line:
    """An all-reduce is a reduce-scatter and a gather of its result."""
    return Line(
        latency_seconds=gather.latency_seconds + reduce.latency_seconds,
        bytes_per_second=1 / (1 / gather.bytes_per_second + 1 / reduce.bytes_per_second),
    )
