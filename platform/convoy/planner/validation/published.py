"""Runs that others measured and published, as workloads: each is a line of a CSV file.

The columns are those of `published.csv`; docs/reference/plan-formats.md#columns-of-measured-runs explains them.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from convoy.catalog.gpus import rented_gpu
from convoy.catalog.instances import Instance, usual_instance
from convoy.config.errors import ConfigError, one_line
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig
from convoy.model.counts import parameter_count
from convoy.planner.memory.gpu import RELIABLE_SHARE, Memory, memory
from convoy.planner.step.hardware import Hardware, limited
from convoy.planner.step.work import Kernels
from convoy.planner.validation.csv_rows import Row, read_rows
from convoy.planner.validation.sources import Limits, describe_kernels, describe_limits, kernels_of, limits_of
from convoy.planner.workload import Machine, Workload

_FULL: dict[str, Any] = {}
_GRADIENTS: dict[str, Any] = {"reshard_after_forward": False}
_HYBRID: dict[str, Any] = {"strategy": "hsdp"}
_WHOLE: dict[str, Any] = {"strategy": "ddp"}
_SHARDING: dict[str, dict[str, Any]] = {
    "full_shard": _FULL, "shard_grad_op": _GRADIENTS, "hybrid_shard": _HYBRID,
    "_hybrid_shard_zero2": _HYBRID | _GRADIENTS, "no_shard": _WHOLE, "fsdp": _FULL, "fsdp2": _FULL, "zero3": _FULL,
    "zero_3": _FULL, "zero2": _GRADIENTS, "zero_2": _GRADIENTS, "hsdp": _HYBRID,
    "hybrid_shard_zero2": _HYBRID | _GRADIENTS, "ddp": _WHOLE, "": _FULL,
}  # fmt: skip
"""torch's names, and others' of the same."""

_PRECISIONS = {
    "bf16": "bf16", "amp_bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "amp_fp16": "bf16", "float16": "bf16",
    "amp_fp8": "fp8", "fp8": "fp8", "float8": "fp8", "": "bf16",
}  # fmt: skip
"""Type of linear layers' operands; fp16 has the peak of bf16."""

_REDUCTIONS = {"pure": "bf16", "default": "fp32", "": "fp32"}
_RECOMPUTED = {
    "none": "none", "false": "none", "no": "none", "": "none", "selective": "selective", "selective_op": "selective",
    "full": "full", "true": "full", "yes": "full",
}  # fmt: skip


@dataclass(frozen=True)
class MeasuredRun:
    """One run and how fast it was."""

    name: str
    """Name of the model."""
    source: str
    workload: Workload
    kernels: Kernels
    tokens_per_second: float
    """Speed of each GPU."""
    machine: Hardware | None = None
    """Peaks that differ from those of the GPU's data sheet."""
    facts: tuple[str, ...] = ()
    """What its source implies and no column states."""

    @property
    def digest(self) -> str:
        """Short hash of what ran, on what, and how fast, by which a calibration lists the runs that it was fitted to.
        Names of models and sources are not part of it."""
        job = self.workload
        train = job.train.model_dump(include={"global_batch", "micro_batch", "activation_checkpointing", "compile"})
        machine = job.machine
        hashed = {
            "model": job.model.model_dump(mode="json", exclude={"name"}),
            "train": train | {"reduced": job.train.reduce_dtype, "operands": self.kernels.matmul},
            "parallel": job.parallel.model_dump(mode="json"),
            "machine": [machine.gpu, machine.memory_bytes, machine.ranks, machine.network_bytes_per_second],
            "rest": [job.sequence_length, job.nodes, self.tokens_per_second],
        }
        return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:12]


def published() -> list[MeasuredRun]:
    """The shipped measurements: MPT, by MosaicML's llm-foundry at commit 07008c8d (Apache-2.0)."""
    with resources.as_file(resources.files(__package__) / "published.csv") as path:
        return read_measured(path)


def read_measured(path: Path) -> list[MeasuredRun]:
    """All rows. Raises ConfigError with file, line and column for what cannot be read, and for a file without rows."""
    return [_measured(row) for row in read_rows(path)]


def memory_of(run: MeasuredRun) -> Memory:
    """Estimate of `memory()`, with the loss kernel of the run's software and its recomputation of whole blocks."""
    job, fused, share = run.workload, run.kernels.fused_loss, run.kernels.whole_blocks
    if share is None:
        return memory(job, fused_loss=fused)
    none, full = (memory(_recomputing(job, mode), fused_loss=fused) for mode in ("none", "full"))
    parts = {part: round((1 - share) * none.parts[part] + share * full.parts[part]) for part in none.parts}
    return Memory.of(parts, none.fixed_bytes, none.nominal_bytes)


def blocks_that_fit(job: Workload) -> float:
    """Smallest share of blocks that must be recomputed whole for a run to fit well; 1 if it never does."""
    none, full = (memory(_recomputing(job, mode)).share for mode in ("none", "full"))
    return min(1.0, max(0.0, (none - RELIABLE_SHARE) / (none - full))) if none > full else 0.0


def _recomputing(job: Workload, mode: str) -> Workload:
    return replace(job, train=job.train.model_copy(update={"activation_checkpointing": mode}))


def _measured(row: Row) -> MeasuredRun:
    name, memory_bytes = _gpu(row)
    usual = usual_instance(name, memory_bytes)
    if usual is None:
        raise row.wrong("gpu", "the catalog has no machine with it")
    gpus, per_node = row.whole("gpus"), row.whole("gpus_per_node", usual=usual.gpus)
    ranks = min(gpus, per_node)
    if gpus % ranks:
        raise row.wrong("gpus", f"must be a multiple of gpus_per_node, {per_node}")
    network = row.optional("network_gbps_per_node") or usual.network_gbps
    machine = _machine(usual, ranks, memory_bytes, network)
    parallel = ParallelConfig.model_validate(row.one_of("sharding", _SHARDING))
    model, train, length = _model(row), _train(row, gpus), row.whole("seq_len")
    try:
        workload = Workload(model, length, train, parallel, machine, gpus // ranks)
    except ValueError as error:
        raise ConfigError(f"{row.where}: {error}") from None
    kernels, limits, source = _kernels(row, workload), _limits(row, machine), row.text("source")
    facts = (describe_kernels(source, model.name, kernels), *describe_limits(limits))
    speed = row.number("tokens_per_s_per_gpu")
    return MeasuredRun(model.name, source, workload, kernels, speed, _peaks(row, machine, limits), facts)


def _train(row: Row, gpus: int) -> TrainConfig:
    micro = row.whole("micro_batch_per_gpu")
    whole = micro * gpus
    batch = row.whole("grad_accum") * whole if row.has("grad_accum") else row.whole("global_batch", usual=whole)
    if batch < gpus:
        raise row.wrong("global_batch", f"must be at least gpus, {gpus}")
    values = {
        "global_batch": batch,
        "micro_batch": micro,
        "param_dtype": "bf16",
        "reduce_dtype": row.one_of("mp_mode", _REDUCTIONS),
        "activation_checkpointing": row.one_of("activation_checkpointing", _RECOMPUTED),
        "compile": row.boolean("compile"),
        "loss_chunk_tokens": 0,
    }
    return TrainConfig.model_validate(values)


def _model(row: Row) -> TransformerConfig:
    """GPT-like without a gated MLP, LLaMA-like with one. Embeddings are tied if that comes nearer to the number of
    parameters, or, without one, as usual for the kind."""
    row.require("mlp_gated")
    gated = row.boolean("mlp_gated")
    shape = {
        "name": row.text("model"),
        "vocab_size": row.whole("vocab_size"),
        "n_layers": row.whole("n_layers"),
        "d_model": row.whole("d_model"),
        "n_heads": row.whole("n_heads"),
        "n_kv_heads": row.whole("n_kv_heads") if row.has("n_kv_heads") else None,
        "d_ff": row.whole("mlp_hidden"),
        "max_sequence_length": row.whole("seq_len"),
        "norm": "rmsnorm" if gated else "layernorm",
        "positions": "rotary" if gated else "learned",
        "mlp": "swiglu" if gated else "gelu",
        "bias": False,
    }
    params = row.optional("params")
    try:
        untied, tied = (TransformerConfig.model_validate({**shape, "tied_embeddings": tied}) for tied in (False, True))
    except ValidationError as error:
        raise ConfigError(f"{row.where}: {one_line(error, TransformerConfig)}") from None
    if params is None:
        return untied if gated else tied
    return min(tied, untied, key=lambda model: abs(parameter_count(model) - params))


def _kernels(row: Row, job: Workload) -> Kernels:
    matmul, chip = row.one_of("precision", _PRECISIONS), job.machine.gpu
    gpu = rented_gpu(chip)
    if matmul == "fp8" and gpu is not None and "fp8" not in gpu.tflops:
        raise row.wrong("precision", f"{chip} has no fp8")
    return replace(kernels_of(row.text("source"), job, matmul), whole_blocks=_whole_blocks(row, job))


def _whole_blocks(row: Row, job: Workload) -> float | None:
    """Share of blocks that a run with selective recomputation recomputes whole; None: it selects operators. HFU exceeds
    MFU by what is recomputed, of which all of forward would be a third. Without both figures operators are assumed. In
    either case the share is large enough for the run to fit."""
    mfu, hfu = row.optional("mfu_percent"), row.optional("hfu_percent")
    if job.train.activation_checkpointing != "selective":
        return None
    needed = blocks_that_fit(job)
    if mfu is None or hfu is None:
        return needed if not memory(job).fits else None
    return min(1.0, max(needed, 3 * (hfu / mfu - 1)))


def _limits(row: Row, machine: Machine) -> Limits:
    """Limits by the source, unless a column has them."""
    watts, memory = limits_of(row.text("source"), machine.gpu, machine.memory_bytes)
    return Limits(None if row.has("power_watts") else watts, None if row.has("memory_gb_per_second") else memory)


def _peaks(row: Row, machine: Machine, limits: Limits) -> Hardware | None:
    watts, gigabytes = row.optional("power_watts"), row.optional("memory_gb_per_second")
    watts = watts or limits.watts
    memory = gigabytes * 1e9 if gigabytes else limits.memory_bytes_per_second
    if watts is None and memory is None:
        return None
    try:
        return limited(machine, watts, memory)
    except ValueError as error:
        raise row.wrong("power_watts", str(error)) from None


def _gpu(row: Row) -> tuple[str, float]:
    """AWS's short name, and bytes of memory."""
    name = row.require("gpu").lower().replace("-", "_").replace(" ", "_")
    match = re.fullmatch(r"(?:nvidia_)?([a-z]+\d+[a-z]*)(?:_sxm\d?)?_(\d+)_?gi?b", name)
    if match is None:
        raise row.wrong("gpu", "must be like a100_80gb")
    return match[1].upper(), float(match[2]) * 2**30


def _machine(usual: Instance, ranks: int, memory_bytes: float, network_gbps: float) -> Machine:
    assert usual.gpu is not None
    return Machine(
        gpu=usual.gpu.name,
        ranks=ranks,
        memory_bytes=memory_bytes,
        host_bytes=usual.memory_gib * 2**30,
        nvlink_bytes_per_second=usual.nvlink_gb_per_second * 1e9,
        network_bytes_per_second=network_gbps * 1e9 / 8,
    )
