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
    """Name by which others refer to it, e.g. `relative_to`."""
    variant: str = ""
    """What makes it another run than one with the same settings, e.g. `baseline`."""
    model: str = ""
    """Name; its size is read from it, e.g. `7B`, `Llama 3 8B`."""
    parameters: Size = ()
    """More exact than the model's name; default unit: one."""
    active_parameters: Size = ()
    """That a token uses, of a mixture of experts."""
    layers: Whole = ()
    """Decoder blocks."""
    width: Whole = ()
    """Of the residual stream."""
    sequence_length: Whole = ()
    """Tokens."""
    precision: Literal["bf16", "fp16", "fp8", "tf32", "fp32"] = "bf16"
    """Of matrix products."""
    recomputation: Literal["none", "selective", "full", ""] = ""
    """Activation checkpointing; empty: the page does not say."""
    strategy: Literal["fsdp", "zero3", "zero2", "zero1", "hsdp", "ddp", "3d", ""] = ""
    """How states are divided; empty, and `3d`: at best over all GPUs."""
    offload: bool = False
    """States are kept in host memory."""
    bytes_per_parameter: Annotated[Figures, Reads("number")] = ()
    """Of states on all GPUs together; default: 16, AdamW in mixed precision."""
    gpu: str = ""
    """Kind, e.g. `A100-40`, `H100 SXM`."""
    gpus: Whole = ()
    """All of them; `32 × A100-40` tells the kind, too."""
    nodes: Whole = ()
    """Machines."""
    gpus_per_node: Whole = ()
    """GPUs of a machine."""
    instance: str = ""
    """AWS instance type, e.g. `p4d.24xlarge` or `p4d`; `4 × p4d.24xlarge` tells the machines, too."""
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
    """Of one step."""
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
    """Reached, TFLOP/s of one GPU; with or without recomputation."""
    peak_tflops: Tflops = ()
    """Of one GPU, where the page tells what MFU was computed with."""
    compute: Annotated[Figures, Reads("flop")] = ()
    """FLOP of the whole training."""
    tokens: Count = ()
    """Of the whole training."""
    time: Hours = ()
    """Of the whole training; also `hours`, `days`."""
    gpu_hours: Annotated[Figures, Reads("gpu_hours")] = ()
    """Of the whole training."""
    price_per_hour: Price = ()
    """USD of one machine and hour, or of one GPU where the text says so."""
    price_per_gpu_hour: Price = ()
    """USD of one GPU and hour."""
    total_price_per_hour: Price = ()
    """USD of all machines and one hour."""
    spot_price: Price = ()
    """USD of one machine and hour on spot."""
    on_demand_price: Price = ()
    """USD of one machine and hour on demand."""
    savings: Share = ()
    """Of the on-demand price, on spot."""
    price_date: str = ""
    """Day of the price, `2025-06-01`."""
    cost: Money = ()
    """USD of the whole training."""
    cost_per_tokens: UnitPrice = ()
    """E.g. `$0.89 per 1 B tokens`; a number alone is USD per million tokens."""
    cost_per_million_tokens: Money = ()
    """USD."""
    cost_per_billion_tokens: Money = ()
    """USD."""
    relative_to: str = ""
    """id of the run that speedup and scaling efficiency are relative to."""
    speedup: Ratio = ()
    """Throughput over that of `relative_to`."""
    scaling_efficiency: Share = ()
    """Throughput per GPU over that of `relative_to`."""
    gpu_memory: Gigabytes = ()
    """Capacity of one GPU."""
    memory_per_gpu: Gigabytes = ()
    """Used, of one GPU."""
    power: Annotated[Figures, Reads("power", "W")] = ()
    """Of all GPUs, or of one where the text says `/GPU`."""
    energy: Annotated[Figures, Reads("energy", "kWh")] = ()
    """Of the whole training."""
    tokens_per_joule: Annotated[Figures, Reads("number")] = ()
    """Throughput over power."""
    goodput: Share = ()
    """Of the time, in which training went on for good."""
    interruptions: Whole = ()
    """In the whole training."""
    recovered: Whole = ()
    """Of the interruptions."""
    recovery_rate: Share = ()
    """Of the interruptions."""
    recovery_time: Seconds = ()
    """Lost by one interruption."""
    mtbf: Hours = ()
    """Time over interruptions."""
    shares: dict[str, Annotated[Figures, Reads("share")]] = {}
    """Of one whole, e.g. parts of a step; they add up to 100 %. By name, or a list."""

    @model_validator(mode="before")
    @classmethod
    def _read_shares(cls, entries: Any) -> Any:
        shares = entries.get("shares") if isinstance(entries, dict) else None
        if isinstance(shares, list):
            shares = {str(at + 1): share for at, share in enumerate(shares)}
        if not isinstance(shares, dict):
            return entries
        return {**entries, "shares": {str(k): figures(f"shares.{k}", v, Reads("share")) for k, v in shares.items()}}


SETTINGS = frozenset(
    {
        "model", "parameters", "active_parameters", "layers", "width", "sequence_length", "precision", "recomputation",
        "strategy", "offload", "bytes_per_parameter", "gpu", "gpus", "nodes", "gpus_per_node", "instance", "region",
        "market", "global_batch", "micro_batch", "accumulation", "model_parallel", "peak_tflops", "price_per_hour",
        "price_per_gpu_hour", "spot_price", "on_demand_price", "price_date", "gpu_memory", "tokens", "variant",
    }
)  # fmt: skip
"""That runs take from the top of the file where they do not tell them; every other key is an outcome."""

IDENTITY = SETTINGS - {
    "price_per_hour", "price_per_gpu_hour", "spot_price", "on_demand_price", "price_date", "market", "region", "tokens",
    "gpu_memory", "peak_tflops", "bytes_per_parameter",
}  # fmt: skip
"""That decide how fast a run is."""


class CollectiveClaims(Claims):
    """One collective operation."""

    id: str = ""
    """Name of it, for the findings."""
    run: str = ""
    """id of the run whose machines it ran on; default: those of the page."""
    operation: str = "all_reduce"
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce or send_recv."""
    size: Annotated[Figures, Reads("message", "GB")] = ()
    """As nccl-tests counts it: of an all-gather the output."""
    ranks: Whole = ()
    """GPUs that take part."""
    nodes: Whole = ()
    """Machines that take part; without `ranks` both readings are tried, a rank for each and for each GPU."""
    gpus_per_node: Whole = ()
    """GPUs of a machine."""
    instance: str = ""
    """AWS instance type."""
    gpu: str = ""
    """Kind."""
    time: Microseconds = ()
    """Of one."""
    bandwidth: Bandwidth = ()
    """Where the page does not say whether of the algorithm or of the bus."""
    algorithm_bandwidth: Bandwidth = ()
    """Size over time."""
    bus_bandwidth: Bandwidth = ()
    """As nccl-tests defines it."""


class LinkClaims(Claims):
    """A link between GPUs or machines."""

    id: str = ""
    """Name of it, for the findings."""
    run: str = ""
    """id of the run whose machines it joins; default: those of the page."""
    scope: str = "inter_node"
    """`inter_node` (between machines) or `intra_node` (NVLink, within one)."""
    instance: str = ""
    """AWS instance type."""
    gpu: str = ""
    """Kind."""
    bandwidth: Bandwidth = ()
    """Of one machine between machines, or of one GPU where the text says `/GPU`; within a machine of one GPU."""
    peak: Annotated[Figures, Reads("exact_bandwidth", "GB/s")] = ()
    """That the page says the link has."""
    utilisation: Share = ()
    """bandwidth over peak."""
    directions: Literal["one", "both"] = "one"
    """Whether both directions are added up."""


class CheckpointClaims(Claims):
    """A checkpoint, and how it is saved and loaded."""

    id: str = ""
    """Name of it, for the findings."""
    run: str = ""
    """id of the run that it is of; default: that of the page."""
    model: str = ""
    """Name; default: the run's."""
    parameters: Size = ()
    """Default: the run's."""
    contents: Literal["weights", "training_state", "adapters", ""] = ""
    """Weights alone, with the optimizer's state, or of LoRA; empty: the page does not say."""
    size: Gigabytes = ()
    """Of the whole checkpoint, or of one rank or machine where the text says `/rank` or `/node`."""
    to: Literal["shared", "nvme", "memory"] = "shared"
    """Where it is saved: storage over the network (S3, FSx, NFS), local disks, or host memory."""
    instance: str = ""
    """AWS instance type."""
    nodes: Whole = ()
    """Machines that save."""
    save_time: Seconds = ()
    """Until it is saved."""
    load_time: Seconds = ()
    """Until it is loaded."""
    stall: Seconds = ()
    """That training stands still for a save."""
    bandwidth: Bandwidth = ()
    """Of the save, all machines together, or of one where the text says `/node`."""
    interval: Seconds = ()
    """Between two saves."""
    interval_steps: Count = ()
    """Steps between two saves; also `interval: every 500 steps`."""
    overhead: Share = ()
    """Of the time; stall (else save_time) over interval."""


class PageClaims(RunClaims):
    """The whole file. What of a run stands here is a run by itself, whose settings those below `runs` share."""

    page: str = ""
    """Title or address of what is audited."""
    date: str = ""
    """Of the page, `2025-06-01`."""
    runs: tuple[RunClaims, ...] = ()
    collectives: tuple[CollectiveClaims, ...] = ()
    links: tuple[LinkClaims, ...] = ()
    checkpoints: tuple[CheckpointClaims, ...] = ()
