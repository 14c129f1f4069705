"""What ranks send each other, against what the real code sends in a process group that only pretends."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.train import TrainConfig
from convoy.model.counts import parameter_count
from convoy.planner.step.communication import Collective, _of_stage, communication
from convoy.planner.step.fsdp_units import stages
from convoy.planner.workload import Machine, Workload
from tests.planner.tracked import Call, counted, counted_by_rank
from tests.ranks import on_ranks

P4D = Machine("A100", 8, 40 * 2**30, 1152 * 2**30, 300e9, 50e9)
GPT = {"vocab_size": 500, "n_layers": 2, "d_model": 64, "n_heads": 4, "max_sequence_length": 32}
LLAMA = {**GPT, "n_kv_heads": 4, "d_ff": 96, "norm": "rmsnorm", "positions": "rotary", "mlp": "swiglu"}
LLAMA |= {"bias": False, "tied_embeddings": False}


def workload(model: dict[str, Any], nodes: int = 1, **keys: Any) -> Workload:
    """keys: of `parallel`, and of `train`."""
    parallel = {key: value for key, value in keys.items() if key in ParallelConfig.model_fields}
    train = {key: value for key, value in keys.items() if key not in parallel}
    return Workload(
        TransformerConfig(**model),
        32,
        TrainConfig(**{"param_dtype": "bf16", **train}),
        ParallelConfig.model_validate(parallel),
        P4D,
        nodes,
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
        ({**GPT, "dropout": 0.1}, {"tensor": 4, "global_batch": 8, "activation_checkpointing": "full"}),
        (LLAMA, {"tensor": 2, "nodes": 2, "reduce_every_pass": False, "global_batch": 32, "micro_batch": 2}),
    ],
)
def test_it_is_what_the_real_code_sends(model: dict[str, Any], keys: dict[str, Any]) -> None:
    job = workload(model, **keys)

    assert total(communication(job)) == counted(job)


@pytest.mark.parametrize("keys", [{}, {"wrap": "linear", "reshard_after_forward": False}])
def test_it_is_what_the_stages_of_a_pipeline_send(keys: dict[str, Any], tmp_path: Path) -> None:
    job = workload({**GPT, "tied_embeddings": False}, pipeline=2, global_batch=12, micro_batch=1, **keys)
    job = replace(job, machine=replace(P4D, ranks=4))
    each = on_ranks(4, counted_by_rank, str(tmp_path / "store"), job)

    assert total(communication(job)) in each
    assert [total(_of_stage(job, stage)) for stage in stages(job)] == [each[0], each[2]]


def total(collectives: Iterable[Collective]) -> Counter[Call]:
    told: Counter[Call] = Counter()
    for one in collectives:
        told[Call(one.kind, one.ranks, one.bytes)] += one.number
    return told


def moved(job: Workload, **of: Any) -> float:
    return sum(c.moved for c in communication(job) if all(getattr(c, key) == value for key, value in of.items()))


def test_a_rank_alone_sends_nothing() -> None:
    alone = replace(workload(GPT), machine=replace(P4D, ranks=1))

    assert communication(alone) == ()


def test_each_parameter_is_gathered_twice_and_reduced_once() -> None:
    """8 bytes of each: two gathers in bf16 and a reduction in fp32."""
    model = {**GPT, "n_layers": 100, "vocab_size": 8}
    bytes_moved = moved(workload(model)) / (7 / 8)

    assert bytes_moved == pytest.approx(8 * parameter_count(TransformerConfig(**model)), rel=0.01)


def test_replicas_exchange_what_a_rank_keeps_once_a_step() -> None:
    job = workload(GPT, nodes=4, strategy="hsdp", global_batch=128, micro_batch=1)
    between = [c for c in communication(job) if c.crosses(8) and c.what == "gradients"]

    assert {(c.kind, c.ranks, c.stride) for c in between} == {("all_reduce", 4, 8)}
    assert sum(c.bytes * c.number for c in between) == 4 * stages(job)[0].shard
    assert not any(c.crosses(8) for c in communication(job) if c.what == "weights")


def test_a_stage_in_the_middle_hands_on_each_micro_batch_both_ways() -> None:
    job = workload({**LLAMA, "n_layers": 4, "vocab_size": 8}, pipeline=4, global_batch=16, micro_batch=1)
    (handed_on,) = [c for c in communication(job) if c.kind == "send"]

    assert (handed_on.number, handed_on.bytes, handed_on.stride) == (2 * 8, 32 * 64 * 2, 2)


def test_what_is_reduced_once_a_step_moves_less() -> None:
    keys: dict[str, Any] = {"global_batch": 64, "micro_batch": 2}

    assert moved(workload(GPT, **keys), kind="reduce_scatter") == 4 * moved(
        workload(GPT, **keys, reduce_every_pass=False), kind="reduce_scatter"
    )
