"""Jobs of which about half have room on their GPUs: what the planner says of them, and what the real code takes.

Models are wide and have few blocks, so that a case takes seconds: what comes with further blocks is the same again.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from convoy.planner.workload import Machine, Workload
from tests.planner import workloads
from tests.planner.workloads import GIB, P4D

G5 = Machine("A10G", 8, 22888 * 2**20, 768 * GIB, 0, 12.5e9)

GPT: dict[str, Any] = {"vocab_size": 50304, "n_layers": 4, "d_model": 8192, "n_heads": 64, "max_sequence_length": 2048}
LLAMA = GPT | workloads.LLAMA | {"vocab_size": 32000, "d_ff": 22016, "max_sequence_length": 4096}
GROUPED = {**LLAMA, "n_kv_heads": 8, "d_ff": 28672}

FULL = {"activation_checkpointing": "full"}


class Case(NamedTuple):
    """One job of the grid."""

    name: str
    workload: Workload


def workload(model: dict[str, Any], machine: Machine, nodes: int, micro_batch: int, **keys: Any) -> Workload:
    """Of one pass a step, unless `passes` says more. keys: of `parallel`, of `train`, and `layers`."""
    passes, model = keys.pop("passes", 1), model | {"n_layers": keys.pop("layers", model["n_layers"])}
    ranks = nodes * machine.ranks // (keys.get("tensor", 1) * keys.get("pipeline", 1))
    train = {"loss_chunk_tokens": 512, "global_batch": ranks * micro_batch * passes, "micro_batch": micro_batch}
    return workloads.workload(nodes, machine, model, model["max_sequence_length"], **train | keys)


def cases() -> Iterator[Case]:
    """About as many on each side, the nearest of them within a few percent."""
    ways: list[tuple[str, dict[str, Any], Machine, int, dict[str, Any], tuple[int, ...]]] = [
        ("gpt, full", GPT, G5, 1, FULL, (9, 10, 12, 14)),
        ("gpt, none", GPT, G5, 2, {}, (4, 5, 7, 8)),
        ("gpt, selective", GPT, P4D, 1, {"activation_checkpointing": "selective"}, (14, 16, 20, 24)),
        ("gpt, linear", GPT, G5, 1, {"wrap": "linear", **FULL}, (12, 14, 18, 20)),
        ("gpt, hsdp", GPT, P4D, 2, {"strategy": "hsdp", "reduce_dtype": "bf16", "passes": 2}, (9, 10, 13, 14)),
        ("gpt, ddp", GPT, P4D, 1, {"strategy": "ddp", "layers": 1}, (14, 18, 22, 26)),
        ("gpt, ZeRO-2", GPT, G5, 2, {"reshard_after_forward": False, "passes": 2}, (1, 2, 4, 5)),
        ("gpt, reduced once", GPT, P4D, 4, {"reduce_every_pass": False, "passes": 2}, (6, 7, 10, 12)),
        ("gpt, whole logits", GPT, G5, 2, {"loss_chunk_tokens": 0, **FULL}, (12, 14, 16, 18)),
        ("gpt, fp32", GPT, P4D, 1, {"param_dtype": "fp32"}, (4, 5, 6, 7)),
        ("gpt, tensor", GPT, G5, 1, {"tensor": 4}, (8, 9, 12, 14)),
        ("llama, full", LLAMA, G5, 1, FULL, (3, 4, 6, 7)),
        ("llama, none", LLAMA, P4D, 1, {}, (4, 5, 6, 7)),
        ("grouped, selective", GROUPED, P4D, 1, {"activation_checkpointing": "selective"}, (7, 8, 10, 11)),
    ]
    for name, model, machine, nodes, keys, batches in ways:
        for micro_batch in batches:
            yield Case(f"{name}, {micro_batch}", workload(model, machine, nodes, micro_batch, **keys))
