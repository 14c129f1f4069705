"""Seconds that the collectives of a step take where nothing hides them: each of `communication.py`, by measured lines.

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
    """Seconds of one step, on the rank that sends most."""

    gather: float = 0.0
    reduce: float = 0.0
    tensor: float = 0.0
    """Activations that ranks add up or hand on, and the two numbers that all ranks add up."""
    moved: float = 0.0
    """Bytes of weights and gradients that FSDP2 casts, packs and unpacks in a rank's memory, even in a group of one."""

    @property
    def total(self) -> float:
        return self.gather + self.reduce + self.tensor


def exposed(job: Workload, machine: MeasuredMachine) -> Exposed:
    """Raises ValueError where a collective is needed that nobody measured: nothing is known of what it takes."""
    seconds = {"weights": 0.0, "gradients": 0.0, "activations": 0.0, "loss and norm": 0.0}
    for collective in communication(job):
        seconds[collective.what] += collective.number * _line(collective, machine).seconds(collective.bytes)
    others = seconds["activations"] + seconds["loss and norm"]
    return Exposed(seconds["weights"], seconds["gradients"], others, _moved(job))


def _moved(job: Workload) -> float:
    train, weights = job.train, parameter_count(job.model) / job.parallel.shared_by
    gathers = 2 if job.parallel.reshard_after_forward else 1
    reductions = job.passes if job.parallel.reduce_every_pass else 1
    return weights * (job.passes * gathers * WIDTH[train.param_dtype] + reductions * WIDTH[train.reduce_dtype])


def _line(collective: Collective, machine: MeasuredMachine) -> Line:
    """The line of a collective, at its own number of ranks."""
    gather, reduce, ranks = machine.gather, machine.reduce, collective.ranks
    line = {"all_gather": gather, "send": gather, "reduce_scatter": reduce}.get(collective.kind, machine.all_reduce)
    if line is not None:
        return _handed_on(line) if collective.kind == "send" else _among(line, ranks)
    if collective.kind == "all_reduce" and gather is not None and reduce is not None:
        return _both(_among(gather, ranks), _among(reduce, ranks))
    missing = {"all_gather": "all-gather", "send": "all-gather", "reduce_scatter": "reduce-scatter"}
    name = missing.get(collective.kind, "all-reduce")
    raise ValueError(f"{machine.device}: no {name} was measured, of which {collective.what} of {ranks} ranks are told")


def _among(line: Line, ranks: int) -> Line:
    """A ring has as many hops as other ranks, and carries (n - 1) / n of a message through each link."""
    hops = (ranks - 1) / (line.ranks - 1)
    share = (line.ranks - 1) / line.ranks * ranks / (ranks - 1)
    return Line(
        latency_seconds=hops * line.latency_seconds, bytes_per_second=share * line.bytes_per_second, ranks=ranks
    )


def _handed_on(gather: Line) -> Line:
    """From one rank to another: a single hop, through which all of the message passes."""
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
