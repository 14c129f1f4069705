"""Runs that others measured and published, as workloads: each is a line of a CSV file.

The columns are those of `published.csv`; docs/reference/plan-formats.md#columns-of-measured-runs explains them.
"""

import csv
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from convoy.catalog.gpus import chip_peak
from convoy.catalog.instances import instance_with_gpu
from convoy.config.errors import ConfigError, first_problem_line
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig
from convoy.model.counts import parameter_count
from convoy.planner.memory.rank import RELIABLE_SHARE, Memory, rank_memory
from convoy.planner.step.hardware import PeakRates, limited_rates
from convoy.planner.step.work import Kernels
from convoy.planner.validation.sources import (
    GpuLimits,
    Publication,
    describe_kernels,
    describe_limits,
    kernels_of,
    limits_of,
    publication_of,
)
from convoy.planner.workload import Machine, Workload, rented_machine


def _canonical_word(**meanings: str) -> BeforeValidator:
    """Case does not matter, and blanks and hyphens count as underscores. meanings: other words for the same."""

    def canonical(text: str) -> str:
        word = text.lower().replace("-", "_").replace(" ", "_")
        return meanings.get(word, word)

    return BeforeValidator(canonical)


_Count = Annotated[int, Field(gt=0, le=10**9)]
_Positive = Annotated[float, Field(gt=0)]
_Sharding = Annotated[
    Literal["full_shard", "shard_grad_op", "hybrid_shard", "_hybrid_shard_zero2", "no_shard"],
    _canonical_word(
        fsdp="full_shard", fsdp2="full_shard", zero3="full_shard", zero_3="full_shard", zero2="shard_grad_op",
        zero_2="shard_grad_op", hsdp="hybrid_shard", hybrid_shard_zero2="_hybrid_shard_zero2", ddp="no_shard",
    ),
]  # fmt: skip
_PARALLEL: dict[str, dict[str, Any]] = {
    "full_shard": {},
    "shard_grad_op": {"reshard_after_forward": False},
    "hybrid_shard": {"strategy": "hsdp"},
    "_hybrid_shard_zero2": {"strategy": "hsdp", "reshard_after_forward": False},
    "no_shard": {"strategy": "ddp"},
}


class _Row(BaseModel):
    """Cells of one line that are not empty."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    source: str = ""
    model: str = ""
    n_layers: _Count
    d_model: _Count
    n_heads: _Count
    n_kv_heads: _Count | None = None
    mlp_hidden: _Count
    mlp_gated: bool
    vocab_size: _Count
    params: _Positive | None = None
    seq_len: _Count
    gpu: str
    gpus: _Count
    gpus_per_node: _Count | None = None
    power_watts: _Positive | None = None
    memory_gb_per_second: _Positive | None = None
    network_gbps_per_node: _Positive | None = None
    precision: Annotated[
        Literal["bf16", "fp8"],
        _canonical_word(amp_bf16="bf16", bfloat16="bf16", fp16="bf16", amp_fp16="bf16", float16="bf16", amp_fp8="fp8",
               float8="fp8"),
    ] = "bf16"  # fmt: skip
    """Type of linear layers' operands; fp16 has the peak of bf16."""
    mp_mode: Annotated[Literal["pure", "default"], _canonical_word()] = "default"
    sharding: _Sharding = "full_shard"
    compile: bool = False
    activation_checkpointing: Annotated[
        Literal["none", "selective", "full"],
        _canonical_word(false="none", no="none", true="full", yes="full", selective_op="selective"),
    ] = "none"
    micro_batch_per_gpu: _Count
    grad_accum: _Count | None = None
    global_batch: _Count | None = None
    mfu_percent: _Positive | None = None
    hfu_percent: _Positive | None = None
    tokens_per_s_per_gpu: _Positive


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
    machine: PeakRates | None = None
    """Peaks that differ from those of the GPU's data sheet."""
    facts: tuple[str, ...] = ()
    """What its source implies and no column states."""
    mfu: float | None = None
    """Share of the dense peak as its source states it, from 0 to 1; None: it does not."""
    publication: Publication | None = None
    """None: not known."""

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


def published_runs() -> list[MeasuredRun]:
    """The shipped measurements: MPT, by MosaicML's llm-foundry at commit 07008c8d (Apache-2.0)."""
    with resources.as_file(resources.files(__package__) / "published.csv") as path:
        return read_measured(path)


def read_measured(path: Path) -> list[MeasuredRun]:
    """All rows that are not empty. Column names may differ in case and surrounding blanks, and other columns are
    ignored. Raises ConfigError with file, line and column for what cannot be read, and for a file without rows."""
    runs = []
    try:
        for line, cells in _lines(path):
            runs.append(_parse_row(f"{path}:{line}", cells))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not runs:
        raise ConfigError(f"{path}: no rows")
    return runs


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, str]]]:
    """The number of each line, and its cells that are not empty."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        names = [name.strip().lower() for name in next(reader, [])]
        for name in filter(None, names):
            if names.count(name) > 1:
                raise ConfigError(f"{path}:1: column {name}: there are two of it")
        for row in reader:
            if len(row) > len(names):
                raise ConfigError(f"{path}:{reader.line_num}: {len(row)} cells, but the file has {len(names)} columns")
            if cells := {name: cell.strip() for name, cell in zip(names, row, strict=False) if cell.strip()}:
                yield reader.line_num, cells


def _parse_row(location: str, cells: Mapping[str, str]) -> MeasuredRun:
    try:
        return _run_of_row(_Row.model_validate(cells))
    except ValidationError as error:
        raise ConfigError(f"{location}: {first_problem_line(error, _Row)}") from None
    except ValueError as error:
        raise ConfigError(f"{location}: {error}") from None


def memory_of(run: MeasuredRun) -> Memory:
    """Estimate of `memory()`, with the run's recomputation of whole blocks."""
    job, share = run.workload, run.kernels.whole_blocks
    if share is None:
        return rank_memory(job)
    none, full = (rank_memory(_with_recomputation(job, mode)) for mode in ("none", "full"))
    parts = {part: round((1 - share) * none.parts[part] + share * full.parts[part]) for part in none.parts}
    return Memory.of(parts, none.fixed_bytes, none.nominal_bytes)


def least_recomputed_share(job: Workload) -> float:
    """Smallest share of blocks that must be recomputed whole for a run to fit well; 1 if it never does."""
    none, full = (rank_memory(_with_recomputation(job, mode)).share for mode in ("none", "full"))
    return min(1.0, max(0.0, (none - RELIABLE_SHARE) / (none - full))) if none > full else 0.0


def _with_recomputation(job: Workload, mode: str) -> Workload:
    return replace(job, train=job.train.model_copy(update={"activation_checkpointing": mode}))


def _run_of_row(row: _Row) -> MeasuredRun:
    """Raises ValueError, with the column and the value, for what cannot be."""
    machine = _machine(row)
    if row.gpus % machine.ranks:
        raise ValueError(f"gpus = {row.gpus}: must be a multiple of gpus_per_node, {machine.ranks}")
    parallel = ParallelConfig.model_validate(_PARALLEL[row.sharding])
    job = Workload(_model(row), row.seq_len, _train(row), parallel, machine, row.gpus // machine.ranks)
    kernels, limits = _kernels(row, job), _limits(row, machine)
    return MeasuredRun(
        name=row.model,
        source=row.source,
        workload=job,
        kernels=kernels,
        tokens_per_second=row.tokens_per_s_per_gpu,
        machine=_peaks(row, machine, limits),
        facts=(describe_kernels(row.source, row.model, kernels), *describe_limits(limits)),
        mfu=None if row.mfu_percent is None else row.mfu_percent / 100,
        publication=publication_of(row.source, job),
    )


def _machine(row: _Row) -> Machine:
    """The usual machine with the row's GPU, or a part of it."""
    name = row.gpu.lower().replace("-", "_").replace(" ", "_")
    match = re.fullmatch(r"(?:nvidia_)?([a-z]+\d+[a-z]*)(?:_sxm\d?)?_(\d+)_?gi?b", name)
    if match is None:
        raise ValueError(f"gpu = {row.gpu}: must be like a100_80gb")
    memory_bytes = float(match[2]) * 2**30
    usual = instance_with_gpu(match[1].upper(), memory_bytes)
    if usual is None:
        raise ValueError(f"gpu = {row.gpu}: the catalog has no machine with it")
    machine = rented_machine(usual, min(row.gpus, row.gpus_per_node or usual.gpus))
    network = (row.network_gbps_per_node or usual.network_gbps) * 1e9 / 8
    return replace(machine, memory_bytes=memory_bytes, network_bytes_per_second=network)


def _train(row: _Row) -> TrainConfig:
    whole = row.micro_batch_per_gpu * row.gpus
    batch = row.grad_accum * whole if row.grad_accum else row.global_batch or whole
    if batch < row.gpus:
        raise ValueError(f"global_batch = {batch}: must be at least gpus, {row.gpus}")
    return TrainConfig(
        global_batch=batch,
        micro_batch=row.micro_batch_per_gpu,
        param_dtype="bf16",
        reduce_dtype="bf16" if row.mp_mode == "pure" else "fp32",
        activation_checkpointing=row.activation_checkpointing,
        compile=row.compile,
        loss_chunk_tokens=0,
    )


def _model(row: _Row) -> TransformerConfig:
    """GPT-like without a gated MLP, LLaMA-like with one. Embeddings are tied if that comes nearer to the number of
    parameters, or, without one, as usual for the kind."""
    gated, params = row.mlp_gated, row.params
    shape = {
        "name": row.model,
        "vocab_size": row.vocab_size,
        "n_layers": row.n_layers,
        "d_model": row.d_model,
        "n_heads": row.n_heads,
        "n_kv_heads": row.n_kv_heads,
        "d_ff": row.mlp_hidden,
        "max_sequence_length": row.seq_len,
        "norm": "rmsnorm" if gated else "layernorm",
        "positions": "rotary" if gated else "learned",
        "mlp": "swiglu" if gated else "gelu",
        "bias": False,
    }
    try:
        untied, tied = (TransformerConfig.model_validate({**shape, "tied_embeddings": tied}) for tied in (False, True))
    except ValidationError as error:
        raise ValueError(first_problem_line(error, TransformerConfig)) from None
    if params is None:
        return untied if gated else tied
    return min(tied, untied, key=lambda model: abs(parameter_count(model) - params))


def _kernels(row: _Row, job: Workload) -> Kernels:
    chip = job.machine.gpu
    gpu = chip_peak(chip)
    if row.precision == "fp8" and gpu is not None and "fp8" not in gpu.tflops:
        raise ValueError(f"precision = fp8: {chip} has no fp8")
    return replace(kernels_of(row.source, job, row.precision), whole_blocks=_recomputed_block_share(row, job))


def _recomputed_block_share(row: _Row, job: Workload) -> float | None:
    """Share of blocks that a run with selective recomputation recomputes whole; None: it selects operators. HFU exceeds
    MFU by what is recomputed, of which all of forward would be a third. Without both figures operators are assumed. In
    either case the share is large enough for the run to fit."""
    if job.train.activation_checkpointing != "selective":
        return None
    needed = least_recomputed_share(job)
    if row.mfu_percent is None or row.hfu_percent is None:
        return needed if not rank_memory(job).fits else None
    return min(1.0, max(needed, 3 * (row.hfu_percent / row.mfu_percent - 1)))


def _limits(row: _Row, machine: Machine) -> GpuLimits:
    """Limits by the source, unless a column has them."""
    watts, memory = limits_of(row.source, machine.gpu, machine.memory_bytes)
    return GpuLimits(None if row.power_watts else watts, None if row.memory_gb_per_second else memory)


def _peaks(row: _Row, machine: Machine, limits: GpuLimits) -> PeakRates | None:
    watts, gigabytes = row.power_watts or limits.watts, row.memory_gb_per_second
    memory = gigabytes * 1e9 if gigabytes else limits.memory_bytes_per_second
    if watts is None and memory is None:
        return None
    return limited_rates(machine, watts, memory)
