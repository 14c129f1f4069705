"""What ranks send each other, against what the real code sends in a process group that only pretends."""

from collections import Counter
from typing import Any

import pytest

from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig
from convoy.planner.communication import communication
from convoy.planner.workload import Machine, Workload
from tests.planner.tracked import Call, counted

P4D = Machine("A100", 8, 40 * 2**30, 1152 * 2**30, 300e9, 50e9)
GPT = {"vocab_size": 500, "n_layers": 2, "d_model": 64, "n_heads": 4, "max_sequence_length": 32}
LLAMA = {**GPT, "n_kv_heads": 4, "d_ff": 96, "norm": "rmsnorm", "positions": "rotary", "mlp": "swiglu"}
LLAMA |= {"bias": False, "tied_embeddings": False}


def workload(model: dict[str, Any], nodes: int = 1, **keys: Any) -> Workload:
    """keys: of `parallel`, and of `train`."""
    parallel = {key: value for key, value in keys.items() if key in ParallelConfig.model_fields}
    train = {key: value for key, value in keys.items() if key not in parallel}
    return Workload(
        TransformerConfig(**model), 32, TrainConfig(**train), ParallelConfig.model_validate(parallel), P4D, nodes
    )


@pytest.mark.parametrize(
    ("model", "keys"),
    [
        (GPT, {}),
        (LLAMA, {"global_batch": 24, "micro_batch": 1, "reduce_dtype": "bf16"}),
        ({**GPT, "d_model": 60, "vocab_size": 501}, {"param_dtype": "fp32"}),  # rows that 8 ranks do not divide
        (GPT, {"wrap": "linear", "activation_checkpointing": "full"}),
        (LLAMA, {"wrap": "linear", "reshard_after_forward": False}),
        (GPT, {"strategy": "hsdp", "nodes": 2, "global_batch": 64, "micro_batch": 2}),
        (LLAMA, {"strategy": "hsdp", "shard_size": 4, "reduce_dtype": "bf16"}),
        (GPT, {"strategy": "ddp", "global_batch": 16, "micro_batch": 1}),
        (LLAMA, {"reduce_every_pass": False, "global_batch": 32, "micro_batch": 2}),
        (GPT, {"reshard_after_forward": False, "global_batch": 32, "micro_batch": 2}),
        (GPT, {"tensor": 4, "global_batch": 8, "micro_batch": 2, "activation_checkpointing": "full"}),
        (LLAMA, {"tensor": 4, "global_batch": 8, "micro_batch": 2, "activation_checkpointing": "selective"}),
        (LLAMA, {"tensor": 2, "nodes": 2, "reduce_every_pass": False, "global_batch": 32, "micro_batch": 2}),
    ],
)
def test_it_is_what_the_real_code_sends(model: dict[str, Any], keys: dict[str, Any]) -> None:
    job = workload(model, **keys)
    told: Counter[Call] = Counter()
    for each in communication(job):
        told[Call(each.kind, each.ranks, each.bytes)] += each.number

    assert told == counted(job)
