"""What ranks send each other in a step: every collective of FSDP2, DDP, and tensor and pipeline parallelism; and the
seconds that they take where nothing hides them.

Derivation and checks: docs/explanation/communication.md. What ranks decide together is left out: a few numbers a step,
on the host, while they compute.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from convoy.catalog.measured_machine import CollectiveTiming, MeasuredMachine
from convoy.model.counts import parameter_count
from convoy.model.families import block_of
from convoy.planner.step.ddp_buckets import GRADIENT, bucket_elements
from convoy.planner.step.fsdp_units import WIDTH, Stage, Unit, stages
from convoy.planner.workload import Workload

Kind = Literal["all_gather", "reduce_scatter", "all_reduce", "send"]
Payload = Literal["weights", "gradients", "activations", "loss and norm"]


@dataclass(frozen=True)
class Collective:
    """A collective that a rank takes part in, `number` times in a step."""

    kind: Kind
    payload: Payload
    unit: str
    """Name of an FSDP unit; of DDP `bucket`, or for the one that backward fills last `last bucket`; `hidden` or
    `step`."""
    number: int
    bytes: int
    """The whole tensor, each time: the result of a gather, the input of a reduction, what is sent."""
    ranks: int
    stride: int
    """Between the numbers of neighbours among them; 1: they are next to each other on a machine."""

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends in a step, by the ring algorithm: each part of a tensor passes all ranks but one, in
        an all-reduce twice."""
        times = {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2, "send": 1}[self.kind]
        share = 1.0 if self.kind == "send" else (self.ranks - 1) / self.ranks
        return times * share * self.bytes * self.number

    def crosses_machines(self, ranks_per_machine: int) -> bool:
        """Whether some of it goes between machines."""
        return (self.ranks - 1) * self.stride >= ranks_per_machine


def busiest_collectives(workload: Workload) -> tuple[Collective, ...]:
    """Collectives of a rank of the stage whose ranks send most, without those among one rank."""
    return busiest_stage(workload)[1]


def busiest_stage(workload: Workload) -> tuple[Stage, tuple[Collective, ...]]:
    """The stage whose ranks send most, and what one of them does."""
    each = [(stage, tuple(_stage_collectives(workload, stage))) for stage in stages(workload)]
    return each[0] if len(each) == 1 else max(each, key=lambda pair: sum(each.sent_bytes for each in pair[1]))


def _stage_collectives(workload: Workload, stage: Stage) -> Iterator[Collective]:
    parallel, everyone = workload.parallel, workload.ranks
    if parallel.uses_ddp:
        yield from _ddp_collectives(workload)
    else:
        for unit, count in stage.unit_counts():
            yield from _unit_collectives(workload, unit, count)
    if parallel.tensor > 1:
        yield from _tensor_collectives(workload, stage)
    if parallel.pipeline > 1:
        handed_on, apart = workload.passes * ((not stage.first) + (not stage.last)), everyone // parallel.pipeline
        yield Collective("send", "activations", "hidden", handed_on, _hidden_bytes(workload), 2, apart)
    if everyone > 1:
        yield Collective("all_reduce", "loss and norm", "step", 1, 16, everyone, 1)


def _unit_collectives(workload: Workload, unit: Unit, count: int) -> Iterator[Collective]:
    """Gathers of its weights, reductions of its gradients."""
    parallel, train = workload.parallel, workload.train
    shards, replicas, apart = workload.shards, workload.replicas, parallel.tensor
    gathers = _gathers_per_step(workload, unit)
    reductions = 1 if _reduces_once_a_step(workload) else workload.passes
    reduced = WIDTH[train.reduce_dtype]
    if shards > 1:
        gathered = WIDTH[train.param_dtype] * unit.padded_elements
        yield Collective("all_gather", "weights", unit.name, gathers * count, gathered, shards, apart)
        scattered = reduced * unit.padded_elements
        yield Collective("reduce_scatter", "gradients", unit.name, reductions * count, scattered, shards, apart)
    if replicas > 1:
        yield Collective("all_reduce", "gradients", unit.name, count, reduced * unit.shard_elements, replicas, shards)


def _ddp_collectives(workload: Workload) -> Iterator[Collective]:
    """Reductions of DDP's buckets, in the last pass."""
    ranks, train = workload.ranks, workload.train
    if ranks == 1:
        return
    on_cpu, width = workload.machine.gpu == "cpu", WIDTH[train.reduce_dtype]
    in_order = workload.parallel.adds_in_rank_order(ranks, train.reduce_dtype, on_cpu=on_cpu)
    kind: Kind = "all_gather" if in_order else "all_reduce"
    times = ranks if in_order else 1
    *buckets, last = bucket_elements(workload.model, train.param_dtype)
    for elements, number in Counter(buckets).items():
        yield Collective(kind, "gradients", "bucket", number, times * width * elements, ranks, 1)
    yield Collective(kind, "gradients", "last bucket", 1, times * width * last, ranks, 1)


def _gathers_per_step(workload: Workload, unit: Unit) -> int:
    """Of one such unit in a step. The root and the head stay from forward to backward."""
    staged, stays = workload.parallel.pipeline > 1, not workload.parallel.reshard_after_forward
    stays = stays or unit.name in ("root", "head")
    if staged:
        # What a backward has gathered stays until the next forward is over. So the forwards before the first backward
        # gather, and each backward that follows a forward.
        return 1 if stays else workload.passes + 1
    if unit.name == "head" and workload.passes > 1:
        # torch 2.13 keeps the order of units over passes: what it gathers ahead of the embedding of a later pass is
        # the head of the pass before; the last of these gathers is never used.
        return workload.passes + 1
    return workload.passes * (1 if stays else 2)


def _reduces_once_a_step(workload: Workload) -> bool:
    """Whether gradients are reduced only after the last pass."""
    return workload.parallel.pipeline > 1 or not workload.parallel.reduce_every_pass


def _tensor_collectives(workload: Workload, stage: Stage) -> Iterator[Collective]:
    """In forward the second product of attention and of the MLP gives a part of a sum, in backward the first ones do.
    The head's tokens are shared, so that its weights get a part of their gradient on each rank."""
    model, train, ranks = workload.model, workload.train, workload.parallel.tensor
    matrices = block_of(model).matrices
    forward = sum(matrix.split == "columns" for matrix in matrices)
    backward = len(matrices) - forward
    # What follows the block's last product is not needed again, but for the mask of a dropout.
    again = 0 if train.activation_checkpointing == "none" else 2 if model.dropout else 1
    number = workload.passes * stage.blocks * (forward + again + backward)
    hidden = _hidden_bytes(workload)
    yield Collective("all_reduce", "activations", "hidden", number, hidden, ranks, 1)
    if not stage.last:
        return
    yield Collective("all_gather", "activations", "hidden", workload.passes, hidden, ranks, 1)
    added_up = _reduces_once_a_step(workload) and workload.passes > 1
    times, width = (1, WIDTH[train.reduce_dtype]) if added_up else (workload.passes, WIDTH[train.param_dtype])
    whole = width * model.vocab_size * model.d_model
    yield Collective("all_reduce", "gradients", "head", times, whole, ranks, 1)
    yield Collective("all_reduce", "gradients", "head", times * model.vectors_per_norm, width * model.d_model, ranks, 1)


def _hidden_bytes(workload: Workload) -> int:
    """Bytes of the residual stream of a pass."""
    return WIDTH[workload.train.param_dtype] * workload.tokens_per_pass * workload.model.d_model


@dataclass(frozen=True)
class ExposedSeconds:
    """Seconds of one step, on the rank that sends most."""

    gather: float = 0.0
    reduce: float = 0.0
    tensor: float = 0.0
    """Activations that ranks add up or hand on, and the two numbers that all ranks add up."""
    copied_bytes: float = 0.0
    """Bytes of weights and gradients that FSDP2 or DDP casts, packs and unpacks in a rank's memory, even in a group of
    one."""

    @property
    def total(self) -> float:
        return self.gather + self.reduce + self.tensor


def communication_seconds(job: Workload, machine: MeasuredMachine) -> ExposedSeconds:
    """Raises ValueError where a collective is needed that nobody measured: nothing is known of what it takes."""
    seconds = {"weights": 0.0, "gradients": 0.0, "activations": 0.0, "loss and norm": 0.0}
    for collective in busiest_collectives(job):
        seconds[collective.payload] += collective.number * _collective_seconds(collective, machine)
    others = seconds["activations"] + seconds["loss and norm"]
    return ExposedSeconds(seconds["weights"], seconds["gradients"], others, _copied_bytes(job))


def _copied_bytes(job: Workload) -> float:
    train, weights = job.train, parameter_count(job.model) / job.parallel.ranks_per_sample
    if job.parallel.uses_ddp:  # autocast copies weights, and gradients are copied into buckets
        casts = (
            job.passes * (1 if train.activation_checkpointing == "none" else 2) if train.param_dtype == "bf16" else 0
        )
        return weights * (casts * WIDTH[train.param_dtype] + GRADIENT)
    gathers = 2 if job.parallel.reshard_after_forward else 1
    reductions = job.passes if job.parallel.reduce_every_pass else 1
    return weights * (job.passes * gathers * WIDTH[train.param_dtype] + reductions * WIDTH[train.reduce_dtype])


def _collective_seconds(collective: Collective, machine: MeasuredMachine) -> float:
    """Of one such collective. An all-reduce that nobody measured is a reduce-scatter and a gather of its result."""
    gather, reduce, all_reduce = machine.gather, machine.reduce, machine.all_reduce
    if collective.kind == "all_reduce" and all_reduce is None and gather is not None and reduce is not None:
        return _line_seconds(reduce, collective) + _line_seconds(gather, collective)
    name, line = {
        "all_gather": ("all-gather", gather),
        "send": ("all-gather", gather),
        "reduce_scatter": ("reduce-scatter", reduce),
        "all_reduce": ("all-reduce", all_reduce),
    }[collective.kind]
    if line is None:
        needed = f"{collective.payload} of {collective.ranks} ranks needs a measured {name}, and there is none"
        raise ValueError(f"{machine.device}: {needed}")
    return _line_seconds(line, collective)


def _line_seconds(line: CollectiveTiming, collective: Collective) -> float:
    """A ring has as many hops as other ranks, and carries (n - 1) / n of a message through each of its links. What one
    rank sends to another passes a single link whole."""
    hop_seconds = line.latency_seconds / (line.ranks - 1)
    link_bytes_per_second = line.bytes_per_second * (line.ranks - 1) / line.ranks
    others = 1 if collective.kind == "send" else collective.ranks - 1
    carried = collective.bytes if collective.kind == "send" else collective.bytes * others / collective.ranks
    return others * hop_seconds + carried / link_bytes_per_second
