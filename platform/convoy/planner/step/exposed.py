"""Seconds of a step that its collectives take where nothing hides them: each of `communication.py`, by measured lines.

On CPUs that is all of them: FSDP2 puts what it prefetches and reduces on streams of its own, of which a CPU has none,
and waits for each call. docs/explanation/step-time.md#machines-that-the-catalog-does-not-know has the
source and the measurement.
"""

from dataclasses import dataclass

from convoy.catalog.measured_machine import Line, MeasuredMachine
from convoy.model.counts import parameter_count
from convoy.planner.step.communication import Collective, communication
from convoy.planner.step.fsdp_units import WIDTH
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
    """Raises ValueError where a collective is needed that nobody measured: nothing is known of what it takes."""
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
    return Line(latency_seconds=line.latency_seconds, bytes_per_second=rate, ranks=line.ranks)


def _line(collective: Collective, machine: MeasuredMachine) -> Line:
    """By which a collective takes its time, at its own number of ranks."""
    gather, reduce, asked = machine.gather, machine.reduce, collective.ranks
    found = {"all_gather": gather, "send": gather, "reduce_scatter": reduce}.get(collective.kind, machine.all_reduce)
    if found is not None:
        return _handed_on(found) if collective.kind == "send" else _among(found, asked)
    if collective.kind == "all_reduce" and gather is not None and reduce is not None:
        return _both(_among(gather, asked), _among(reduce, asked))
    missing = {"all_gather": "all-gather", "send": "all-gather", "reduce_scatter": "reduce-scatter"}
    name = missing.get(collective.kind, "all-reduce")
    raise ValueError(f"{machine.device}: no {name} was measured, of which {collective.what} of {asked} ranks are told")


def _among(line: Line, asked: int) -> Line:
    """A ring has as many hops as others, and carries a share of (n - 1) / n of a message through each link."""
    hops = (asked - 1) / (line.ranks - 1)
    share = (line.ranks - 1) / line.ranks * asked / (asked - 1)
    return Line(
        latency_seconds=hops * line.latency_seconds, bytes_per_second=share * line.bytes_per_second, ranks=asked
    )


def _handed_on(gather: Line) -> Line:
    """From one rank to another: a single hop, and all of the message passes the link."""
    share, hops = (gather.ranks - 1) / gather.ranks, gather.ranks - 1
    rate = share * gather.bytes_per_second
    return Line(latency_seconds=gather.latency_seconds / hops, bytes_per_second=rate, ranks=2)


def _both(gather: Line, reduce: Line) -> Line:
    """An all-reduce is a reduce-scatter and a gather of its result. Both lines: of as many ranks."""
    return Line(
        latency_seconds=gather.latency_seconds + reduce.latency_seconds,
        bytes_per_second=1 / (1 / gather.bytes_per_second + 1 / reduce.bytes_per_second),
        ranks=gather.ranks,
    )
