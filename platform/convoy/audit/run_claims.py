"""What a page says of a training run, and which of it tells what run it is. docs/audit.md has the keys."""

from typing import Annotated, Any, Literal

from pydantic import model_validator

from convoy.audit.quantities.kinds import (
    Claims,
    Count,
    Figures,
    Gigabytes,
    Hours,
    Money,
    Price,
    Ratio,
    Reads,
    Seconds,
    Share,
    Size,
    Tflops,
    UnitPrice,
    Whole,
    figures,
)


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
    def _read_shares(cls, told: Any) -> Any:
        shares = told.get("shares") if isinstance(told, dict) else None
        if isinstance(shares, list):
            shares = {str(at + 1): share for at, share in enumerate(shares)}
        if not isinstance(shares, dict):
            return told
        return {**told, "shares": {str(k): figures(f"shares.{k}", v, Reads("share")) for k, v in shares.items()}}


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
