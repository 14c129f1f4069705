"""Runs that others measured and published, one a line of a CSV file, as workloads.

The columns are those of `published.csv`; docs/planner.md#measurements explains them.
"""

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from convoy.catalog.instances import Instance, usual_instance
from convoy.config.errors import ConfigError, one_line
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig
from convoy.model.counts import parameter_count
from convoy.planner.work import Kernels
from convoy.planner.workload import Machine, Workload

_FULL: dict[str, Any] = {}
_GRADIENTS: dict[str, Any] = {"reshard_after_forward": False}
_HYBRID: dict[str, Any] = {"strategy": "hsdp"}
_SHARDING: dict[str, dict[str, Any]] = {
    "full_shard": _FULL, "shard_grad_op": _GRADIENTS, "hybrid_shard": _HYBRID,
    "_hybrid_shard_zero2": _HYBRID | _GRADIENTS, "no_shard": {"strategy": "ddp"},
    "fsdp": _FULL, "zero3": _FULL, "zero2": _GRADIENTS, "hsdp": _HYBRID, "ddp": {"strategy": "ddp"}, "": _FULL,
}  # fmt: skip
"""torch's names, and others' of the same."""

_PRECISIONS = {
    "bf16": "bf16", "amp_bf16": "bf16", "fp16": "bf16", "amp_fp16": "bf16", "amp_fp8": "fp8", "fp8": "fp8", "": "bf16",
}  # fmt: skip
"""Of linear layers; fp16 has the peak of bf16."""

_REDUCTIONS = {"pure": "bf16", "default": "fp32", "": "fp32"}
_RECOMPUTED = {"none": "none", "selective": "selective", "full": "full", "": "none"}
_BOOLEANS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False, "": False}


@dataclass(frozen=True)
class Measured:
    """One run and how fast it was."""

    name: str
    """Of the model."""
    source: str
    """Where it was published."""
    workload: Workload
    kernels: Kernels
    tokens_per_second: float
    """Of each GPU."""


def published() -> list[Measured]:
    """The shipped measurements: MPT, by MosaicML's llm-foundry at commit 07008c8d (Apache-2.0)."""
    with resources.as_file(resources.files(__package__) / "published.csv") as path:
        return read_measured(path)


def read_measured(path: Path) -> list[Measured]:
    """All rows. Raises ConfigError with file, line and column for what cannot be read, and where there is no row."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not rows:
        raise ConfigError(f"{path}: no rows")
    return [_Row(row, f"{path}:{number}").measured() for number, row in enumerate(rows, start=2)]


@dataclass(frozen=True)
class _Row:
    cells: dict[str, str]
    where: str

    def measured(self) -> Measured:
        gpus, per_node = self.whole("gpus"), self.whole("gpus_per_node")
        ranks = min(gpus, per_node)
        if gpus % ranks:
            raise self.wrong("gpus", f"must be a multiple of gpus_per_node, {per_node}")
        parallel = ParallelConfig.model_validate(self.one_of("sharding", _SHARDING))
        model, length, train, machine = self.model(), self.whole("seq_len"), self.train(gpus), self.machine(ranks)
        try:
            workload = Workload(model, length, train, parallel, machine, gpus // ranks)
        except ValueError as error:
            raise ConfigError(f"{self.where}: {error}") from None
        speed = self.number("tokens_per_s_per_gpu")
        return Measured(model.name, self.text("source"), workload, self.kernels(), speed)

    def train(self, gpus: int) -> TrainConfig:
        micro = self.whole("micro_batch_per_gpu")
        told = {
            "global_batch": micro * (self.whole("grad_accum") if self.text("grad_accum") else 1) * gpus,
            "micro_batch": micro,
            "reduce_dtype": self.one_of("mp_mode", _REDUCTIONS),
            "activation_checkpointing": self.one_of("activation_checkpointing", _RECOMPUTED),
            "compile": self.boolean("compile"),
            "loss_chunk_tokens": 0,
        }
        return TrainConfig.model_validate(told)

    def model(self) -> TransformerConfig:
        """GPT-like without a gated MLP, LLaMA-like with one; tied as it comes nearer to the number of parameters."""
        gated = self.boolean("mlp_gated")
        shape = {
            "name": self.text("model"),
            "vocab_size": self.whole("vocab_size"),
            "n_layers": self.whole("n_layers"),
            "d_model": self.whole("d_model"),
            "n_heads": self.whole("n_heads"),
            "n_kv_heads": self.whole("n_kv_heads") if self.text("n_kv_heads") else None,
            "d_ff": self.whole("mlp_hidden"),
            "max_sequence_length": self.whole("seq_len"),
            "norm": "rmsnorm" if gated else "layernorm",
            "positions": "rotary" if gated else "learned",
            "mlp": "swiglu" if gated else "gelu",
            "bias": False,
        }
        params = self.number("params")
        try:
            models = [TransformerConfig.model_validate({**shape, "tied_embeddings": tied}) for tied in (True, False)]
        except ValidationError as error:
            raise ConfigError(f"{self.where}: {one_line(error, TransformerConfig)}") from None
        return min(models, key=lambda model: abs(parameter_count(model) - params))

    def kernels(self) -> Kernels:
        """MPT's attention is a kernel of its own; the LLaMA of most has a norm in many."""
        mpt = "llm-foundry" in self.text("source")
        return Kernels(self.one_of("precision", _PRECISIONS), "triton" if mpt else "sdpa", fused_norm=False)

    def machine(self, ranks: int) -> Machine:
        name, memory_bytes = self.gpu()
        usual = usual_instance(name, memory_bytes)
        if usual is None:
            raise self.wrong("gpu", "the catalog has no machine with it")
        network = self.text("network_gbps_per_node")
        gbps = self.number("network_gbps_per_node") if network else usual.network_gbps
        return _machine(usual, ranks, memory_bytes, gbps)

    def gpu(self) -> tuple[str, float]:
        """AWS's short name and the bytes of its memory."""
        found = re.fullmatch(r"([a-z]+\d+[a-z]*)_(\d+)gb", self.text("gpu").lower())
        if found is None:
            raise self.wrong("gpu", "must be like a100_80gb")
        return found[1].upper(), float(found[2]) * 2**30

    def text(self, column: str) -> str:
        value = self.cells.get(column)
        if value is None:
            raise ConfigError(f"{self.where}: no column {column}")
        return value.strip()

    def whole(self, column: str) -> int:
        value = self.number(column)
        if value != int(value):
            raise self.wrong(column, "must be a whole number")
        return int(value)

    def number(self, column: str) -> float:
        try:
            value = float(self.text(column))
        except ValueError:
            raise self.wrong(column, "must be a number") from None
        if not 0 < value < float("inf"):
            raise self.wrong(column, "must be positive")
        return value

    def boolean(self, column: str) -> bool:
        return bool(self.one_of(column, _BOOLEANS))

    def one_of(self, column: str, known: Mapping[str, Any]) -> Any:
        value = self.text(column).lower()
        if value not in known:
            raise self.wrong(column, f"must be one of {', '.join(filter(None, known))}")
        return known[value]

    def wrong(self, column: str, what: str) -> ConfigError:
        return ConfigError(f"{self.where}: {column} = {self.text(column)}: {what}")


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
