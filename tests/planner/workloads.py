"""Workloads to plan in tests."""

from typing import Any

from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig
from convoy.planner.workload import Machine, Workload

P4D = Machine("A100", 8, 40 * 2**30, 1152 * 2**30, 300e9, 50e9)
P5 = Machine("H100", 8, 80 * 2**30, 2048 * 2**30, 450e9, 400e9)

GPT_7B: dict[str, Any] = {"n_layers": 32, "d_model": 4096, "n_heads": 32, "vocab_size": 50304, "bias": False}
LLAMA_8B: dict[str, Any] = {
    "n_layers": 32, "d_model": 4096, "n_heads": 32, "n_kv_heads": 8, "d_ff": 14336, "vocab_size": 128256,
    "norm": "rmsnorm", "positions": "rotary", "mlp": "swiglu", "bias": False, "tied_embeddings": False,
}  # fmt: skip


def workload(
    nodes: int = 2,
    machine: Machine = P4D,
    model: dict[str, Any] = GPT_7B,
    parallel: dict[str, Any] | None = None,
    sequence_length: int = 2048,
    **train: Any,
) -> Workload:
    """Two sequences for each GPU, in one pass, unless told otherwise."""
    told = {"global_batch": 2 * nodes * machine.ranks, "micro_batch": 2, "loss_chunk_tokens": 0, **train}
    told.setdefault("param_dtype", "bf16")
    return Workload(
        TransformerConfig.model_validate({"max_sequence_length": sequence_length, **model}),
        sequence_length,
        TrainConfig.model_validate(told),
        ParallelConfig.model_validate(parallel or {}),
        machine,
        nodes,
    )
