"""What a page says, as a file of claims has it. docs/reference/claims.md has the keys with examples.

Every figure is text with its unit, or a number in the default unit of its key, or a list of such where the page says it
more than once. Keys are the field's own words; what a claim is about is told by where it stands.
"""

import itertools
import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import model_validator

from convoy.audit.quantities.aliases import option, with_own_keys
from convoy.audit.quantities.number import Figure
from convoy.audit.quantities.units import parse
from convoy.config.base import Frozen
from convoy.config.errors import yaml_value

Figures = tuple[Figure, ...]


class Reads(NamedTuple):
    """How the text of a field is read. default: unit of a number alone."""

    kind: str
    default: str = ""


Whole = Annotated[Figures, Reads("exact")]
Count = Annotated[Figures, Reads("count")]
Size = Annotated[Figures, Reads("size")]
Hours = Annotated[Figures, Reads("time", "h")]
Seconds = Annotated[Figures, Reads("time", "s")]
Microseconds = Annotated[Figures, Reads("time", "us")]
Gigabytes = Annotated[Figures, Reads("bytes", "GB")]
Bandwidth = Annotated[Figures, Reads("bandwidth", "GB/s")]
Money = Annotated[Figures, Reads("money")]
Price = Annotated[Figures, Reads("price")]
UnitPrice = Annotated[Figures, Reads("unit_price")]
Share = Annotated[Figures, Reads("share")]
Ratio = Annotated[Figures, Reads("ratio")]
Tflops = Annotated[Figures, Reads("flops")]


class Claims(Frozen):
    """What the sections have in common: how the text of a figure becomes one."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, entries: Any) -> Any:
        if not isinstance(entries, dict):
            return entries
        read = {}
        for name, value in with_own_keys(entries, cls.model_fields).items():
            field = cls.model_fields.get(name)
            how = next((each for each in field.metadata if isinstance(each, Reads)), None) if field else None
            read[name] = option(name, value, field) if how is None else figures(name, value, how)
        return read


def figures(name: str, value: Any, how: Reads) -> Figures:
    """Of one key. Raises ValueError, which names it."""
    texts = value if isinstance(value, list | tuple) else [value]
    for first, second in itertools.pairwise(map(str, texts)):
        if re.fullmatch(r"[^\d]*\d{1,3}", first) and re.match(r"\d{3}(?!\d)", second):
            raise ValueError(
                f"{name} = {yaml_value(value)}: a figure with a comma needs quotes in a list, '{first},{second}'"
            )
    return tuple(_figure(name, each, how) for each in texts)


def _figure(name: str, value: Any, how: Reads) -> Figure:
    if isinstance(value, Figure):
        return value
    if not isinstance(value, str | int | float) or isinstance(value, bool) or not str(value).strip():
        raise ValueError(f"{name} = {yaml_value(value)}: must be a figure, e.g. 57 h")
    text = str(value).strip()
    bare = how.default and re.fullmatch(r"[\d.,_eE+-]+", text)
    try:
        return parse(how.kind, f"{text} {how.default}" if bare else text)
    except ValueError as error:
        raise ValueError(f"{name} = {yaml_value(value)}: {error}") from None


class RunClaims(Claims):
    """One training run: what it is, how fast it is, what it takes and costs."""

    id: str = ""
    """Name by which others refer to it, e.g. in `relative_to`."""
    variant: str = ""
    """What distinguishes it from a run with the same settings, e.g. `baseline`."""
    model: str = ""
    """Name, which contains the size, e.g. `7B`, `Llama 3 8B`."""
    parameters: Size = ()
    """Number of parameters, more exact than the model's name."""
    active_parameters: Size = ()
    """Parameters that a token uses, in a mixture of experts."""
    layers: Whole = ()
    """Decoder blocks."""
    width: Whole = ()
    """Width of the residual stream."""
    sequence_length: Whole = ()
    """Tokens."""
    precision: Literal["bf16", "fp16", "fp8", "tf32", "fp32"] = "bf16"
    """Type of matrix products."""
    recomputation: Literal["none", "selective", "full", ""] = ""
    """Activation checkpointing; empty: the page does not say."""
    strategy: Literal["fsdp", "zero3", "zero2", "zero1", "hsdp", "ddp", "3d", ""] = ""
    """How states are divided; empty, and `3d`: at best over all GPUs."""
    offload: bool = False
    """States are kept in host memory."""
    bytes_per_parameter: Annotated[Figures, Reads("number")] = ()
    """Bytes of states per parameter, on all GPUs together; default: 16, AdamW in mixed precision."""
    gpu: str = ""
    """Kind, e.g. `A100-40`, `H100 SXM`."""
    gpus: Whole = ()
    """Number of all GPUs; `32 × A100-40` states the kind, too."""
    nodes: Whole = ()
    """Machines."""
    gpus_per_node: Whole = ()
    """GPUs of a machine."""
    instance: str = ""
    """AWS instance type, e.g. `p4d.24xlarge` or `p4d`; `4 × p4d.24xlarge` states the number of machines, too."""
    region: str = ""
    """AWS region, e.g. `us-east-1`."""
    market: Literal["on_demand", "spot", "capacity_block", "reserved", ""] = ""
    """How the machines are bought."""
    global_batch: Annotated[Figures, Reads("batch")] = ()
    """Sequences of a step, or tokens where the text says so, or has millions: `4M tokens`."""
    micro_batch: Whole = ()
    """Sequences of one GPU in one pass."""
    accumulation: Whole = ()
    """Passes of a step."""
    model_parallel: Whole = ()
    """GPUs that share a sequence: tensor × pipeline × context parallel; default: 1."""
    steps: Count = ()
    """Optimizer steps."""
    step_time: Seconds = ()
    """Time of one step."""
    throughput: Annotated[Figures, Reads("rate")] = ()
    """Tokens/s of all GPUs, or of one where the text says `/GPU`."""
    throughput_per_gpu: Annotated[Figures, Reads("rate")] = ()
    """Tokens/s of one GPU."""
    samples_per_second: Annotated[Figures, Reads("samples")] = ()
    """Sequences/s of all GPUs."""
    mfu: Share = ()
    """Model FLOPs utilisation."""
    hfu: Share = ()
    """Hardware FLOPs utilisation: with recomputation."""
    tflops_per_gpu: Tflops = ()
    """Achieved TFLOP/s of one GPU, with or without recomputation."""
    peak_tflops: Tflops = ()
    """Peak of one GPU, if the page says what MFU was computed with."""
    compute: Annotated[Figures, Reads("flop")] = ()
    """FLOP of the whole training."""
    tokens: Count = ()
    """Tokens of the whole training."""
    time: Hours = ()
    """Time of the whole training; also `hours`, `days`."""
    gpu_hours: Annotated[Figures, Reads("gpu_hours")] = ()
    """GPU-hours of the whole training."""
    price_per_hour: Price = ()
    """USD per hour of one machine, or of one GPU where the text says so."""
    price_per_gpu_hour: Price = ()
    """USD per hour of one GPU."""
    total_price_per_hour: Price = ()
    """USD per hour of all machines."""
    spot_price: Price = ()
    """USD per hour of one machine on spot."""
    on_demand_price: Price = ()
    """USD per hour of one machine on demand."""
    savings: Share = ()
    """Share of the on-demand price that spot saves."""
    cost: Money = ()
    """USD of the whole training."""
    cost_per_tokens: UnitPrice = ()
    """E.g. `$0.89 per 1 B tokens`; a number alone is USD per million tokens."""
    cost_per_million_tokens: Money = ()
    """USD per million tokens."""
    cost_per_billion_tokens: Money = ()
    """USD per billion tokens."""
    relative_to: str = ""
    """id of the run that speedup and scaling efficiency are relative to."""
    speedup: Ratio = ()
    """Throughput over that of `relative_to`."""
    scaling_efficiency: Share = ()
    """Throughput per GPU over that of `relative_to`."""
    gpu_memory: Gigabytes = ()
    """Capacity of one GPU."""
    memory_per_gpu: Gigabytes = ()
    """Memory in use on one GPU."""
    goodput: Share = ()
    """Share of the time in which training made lasting progress."""
    interruptions: Whole = ()
    """Number of interruptions in the whole training."""
    recovered: Whole = ()
    """Number of interruptions that were recovered from."""
    recovery_rate: Share = ()
    """Share of the interruptions that were recovered from."""
    recovery_time: Seconds = ()
    """Time lost by one interruption."""
    mtbf: Hours = ()
    """Time over interruptions."""


SETTINGS = frozenset(
    {
        "model", "parameters", "active_parameters", "layers", "width", "sequence_length", "precision", "recomputation",
        "strategy", "offload", "bytes_per_parameter", "gpu", "gpus", "nodes", "gpus_per_node", "instance", "region",
        "market", "global_batch", "micro_batch", "accumulation", "model_parallel", "peak_tflops", "price_per_hour",
        "price_per_gpu_hour", "spot_price", "on_demand_price", "gpu_memory", "tokens", "variant",
    }
)  # fmt: skip
"""That runs take from the top of the file where they do not tell them; every other key is an outcome."""

IDENTITY = SETTINGS - {
    "price_per_hour", "price_per_gpu_hour", "spot_price", "on_demand_price", "market", "region", "tokens",
    "gpu_memory", "peak_tflops", "bytes_per_parameter",
}  # fmt: skip
"""That decide how fast a run is."""


class CollectiveClaims(Claims):
    """One collective operation."""

    id: str = ""
    """Name in findings."""
    run: str = ""
    """id of the run whose machines it ran on; default: those of the page."""
    operation: str = "all_reduce"
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce or send_recv."""
    size: Annotated[Figures, Reads("message", "GB")] = ()
    """Size as nccl-tests counts it: of an all-gather the output."""
    ranks: Whole = ()
    """GPUs that take part."""
    nodes: Whole = ()
    """Machines that take part; without `ranks`, one rank per machine and one per GPU are both tried."""
    gpus_per_node: Whole = ()
    """GPUs of a machine."""
    instance: str = ""
    """AWS instance type."""
    gpu: str = ""
    """Kind of GPU."""
    time: Microseconds = ()
    """Time of one operation."""
    bandwidth: Bandwidth = ()
    """Bandwidth, if the page does not say whether of the algorithm or of the bus."""
    algorithm_bandwidth: Bandwidth = ()
    """Size over time."""
    bus_bandwidth: Bandwidth = ()
    """As nccl-tests defines it."""


class LinkClaims(Claims):
    """A link between GPUs or machines."""

    id: str = ""
    """Name in findings."""
    run: str = ""
    """id of the run whose machines it connects; default: those of the page."""
    scope: str = "inter_node"
    """`inter_node` (between machines) or `intra_node` (NVLink, within one)."""
    instance: str = ""
    """AWS instance type."""
    gpu: str = ""
    """Kind of GPU."""
    bandwidth: Bandwidth = ()
    """Bandwidth of one machine between machines, or of one GPU where the text says `/GPU`; within a machine, of one
    GPU."""
    peak: Annotated[Figures, Reads("exact_bandwidth", "GB/s")] = ()
    """Peak bandwidth according to the page."""
    utilisation: Share = ()
    """Bandwidth over peak."""
    directions: Literal["one", "both"] = "one"
    """Whether both directions are added up."""


class CheckpointClaims(Claims):
    """A checkpoint, and how it is saved and loaded."""

    id: str = ""
    """Name in findings."""
    run: str = ""
    """id of the run that it belongs to; default: that of the page."""
    model: str = ""
    """Name; default: the run's."""
    parameters: Size = ()
    """Default: the run's."""
    contents: Literal["weights", "training_state", "adapters", ""] = ""
    """Weights alone, with the optimizer's state, or of LoRA; empty: the page does not say."""
    size: Gigabytes = ()
    """Size of the whole checkpoint, or of one rank or machine where the text says `/rank` or `/node`."""
    to: Literal["shared", "nvme", "memory"] = "shared"
    """Where it is saved: storage over the network (S3, FSx, NFS), local disks, or host memory."""
    instance: str = ""
    """AWS instance type."""
    nodes: Whole = ()
    """Machines that save."""
    save_time: Seconds = ()
    """Time until it is saved."""
    load_time: Seconds = ()
    """Time until it is loaded."""
    stall: Seconds = ()
    """Time for which training waits for a save."""
    bandwidth: Bandwidth = ()
    """Bandwidth of the save, of all machines together, or of one where the text says `/node`."""
    interval: Seconds = ()
    """Time between two saves."""
    interval_steps: Count = ()
    """Steps between two saves; also `interval: every 500 steps`."""
    overhead: Share = ()
    """Share of the time: stall (else save_time) over interval."""


class PageClaims(RunClaims):
    """The whole file. What of a run stands here is a run by itself, whose settings those below `runs` share."""

    page: str = ""
    """Title or address of what is audited."""
    runs: tuple[RunClaims, ...] = ()
    collectives: tuple[CollectiveClaims, ...] = ()
    links: tuple[LinkClaims, ...] = ()
    checkpoints: tuple[CheckpointClaims, ...] = ()
