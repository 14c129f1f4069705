"""What collectives carry: the sums that anyone can do by hand."""

from collections import Counter
from typing import Any

import pytest

from convoy.model.counts import parameter_count
from convoy.planner.step.communication import Collective, Kind, busiest_stage
from convoy.planner.step.traffic import block_traffic, link_load
from tests.planner.workloads import GPT_7B, LLAMA_8B, workload


@pytest.mark.parametrize("model", [GPT_7B, LLAMA_8B])
@pytest.mark.parametrize(
    "told",
    [
        {},
        {"reshard_after_forward": False},
        {"reduce_every_pass": False},
        {"wrap": "linear"},
        {"strategy": "hsdp", "shard_size": 16},
        {"strategy": "ddp"},
        {"tensor": 4},
        {"tensor": 2, "reduce_every_pass": False, "reduce_dtype": "bf16"},
        {"pipeline": 4},
        {"pipeline": 4, "tensor": 2, "reshard_after_forward": False},
    ],
)
def test_all_bytes_that_the_real_code_sends_are_in_it(model: dict[str, Any], told: dict[str, Any]) -> None:
    """`communication.py` has them, checked against the real code. The two numbers that all ranks add up are part of the
    fixed time of a step; a stage in the middle hands on both ways, one at an end does half of that."""
    if "pipeline" in told and model is GPT_7B:
        model = {**model, "tied_embeddings": False}
    job = workload(8, model=model, global_batch=3 * 128, micro_batch=1, **told)
    stage, collectives = busiest_stage(job)
    sent, blocks, passes = block_traffic(job), stage.blocks, job.passes

    weights = sent.gathering * (blocks * sent.gather.held * (1 + sent.again) + sent.gather_root.held)
    weights += sent.gathering * sent.gather_again.held
    gradients = sent.reducing * (blocks * sent.reduce.held + sent.reduce_root.held)
    copies = blocks * sent.replicate.held + sent.replicate_root.held
    among_tensor_ranks = passes * (blocks * sent.tensor_sums * sent.tensor.held + sent.tensor_head.held)
    handed_on = passes * sent.send.held * ((not stage.first) + (not stage.last))
    counted = Counter[str]()
    for each in collectives:
        counted[each.payload] += each.bytes * each.number
    assert weights == pytest.approx(counted["weights"])
    rest = counted["gradients"] + counted["activations"]
    assert gradients + copies + among_tensor_ranks + handed_on == pytest.approx(rest)


def test_stages_on_other_machines_hand_on_over_the_network() -> None:
    """All ranks of a machine at once; within a machine each has its own way."""
    far = block_traffic(workload(4, model=LLAMA_8B, pipeline=4)).send
    near = block_traffic(workload(1, model=LLAMA_8B, pipeline=4)).send

    hidden = 2 * 2 * 2048 * 4096
    assert (far.inside, far.between) == (0, 8 * hidden)
    assert (near.inside, near.between) == (hidden, 0)


@pytest.mark.parametrize(("nodes", "stages", "abreast"), [(3, 4, 6), (2, 4, 4), (1, 4, 0), (6, 4, 8)])
def test_the_slowest_pair_of_stages_sets_the_pace(nodes: int, stages: int, abreast: int) -> None:
    """Stages of 24 ranks on three machines are 6 apart: 2 to 7 send to 8 to 13 of the next machine. Of 16 on two they
    are 4 apart: 4 to 7 send to 8 to 11."""
    sent = block_traffic(workload(nodes, model=LLAMA_8B, pipeline=stages, global_batch=nodes * 64)).send

    ranks, apart = nodes * 8, nodes * 8 // stages
    on = [sum(r // 8 == machine != (r + apart) // 8 for r in range(ranks - apart)) for machine in range(nodes)]
    assert max(on) == abreast
    assert sent.between == abreast * sent.held
    assert (sent.inside > 0) == (nodes == 1)


def test_a_flat_group_crosses_each_network_once_for_all_but_its_own_share() -> None:
    sent = block_traffic(workload(8)).gather

    assert sent.between == pytest.approx(sent.held * 7 / 8)
    assert sent.inside == pytest.approx(sent.held * 63 / 64)


def test_hybrid_groups_cross_no_network_but_their_copies_do_together() -> None:
    sent = block_traffic(workload(8, strategy="hsdp"))

    assert sent.gather.between == sent.reduce.between == 0
    # Eight shards at once, each twice around eight machines.
    assert sent.replicate.between == pytest.approx(2 * sent.reduce.held * 7 / 8)
    assert sent.replicate.inside == 0


def test_small_hybrid_groups_have_copies_on_one_machine() -> None:
    sent = block_traffic(workload(1, strategy="hsdp", shard_size=4))

    assert sent.replicate.between == 0
    assert sent.replicate.inside == pytest.approx(2 * sent.reduce.held / 4 / 2)


def test_whole_copies_add_up_all_gradients_once_a_step() -> None:
    sent = block_traffic(workload(4, strategy="ddp", global_batch=256))

    assert sent.gather.held == sent.reduce.held == 0
    assert sent.replicate.between == pytest.approx(2 * sent.replicate.held * 3 / 4)


def test_ranks_of_one_product_share_the_network_of_their_machine() -> None:
    whole, shared = (block_traffic(workload(4, tensor=tensor)).gather for tensor in (1, 8))

    # Norms are whole on each of them.
    assert shared.held == pytest.approx(whole.held / 8, rel=1e-3)
    assert shared.between == pytest.approx(whole.between, rel=1e-3)
    assert shared.inside == 0


def test_each_optimizer_updates_its_share() -> None:
    job = workload(8)

    assert block_traffic(job).updated == pytest.approx(parameter_count(job.model) / 64)
    assert block_traffic(workload(8, strategy="ddp")).updated == parameter_count(job.model)


def test_a_ring_has_a_hop_for_each_of_its_ranks() -> None:
    def hops(kind: Kind, ranks: int) -> float:
        return link_load(Collective(kind, "weights", "block", 1, 10**6, ranks, 1), 8).hops

    assert hops("all_gather", 32) - hops("all_gather", 8) == pytest.approx(3 * 14e-6)
    assert hops("all_reduce", 8) == pytest.approx(2 * hops("all_gather", 8))


def test_linear_wraps_send_the_same_in_more_messages() -> None:
    block, linear = (block_traffic(workload(wrap=wrap)).gather for wrap in ("block", "linear"))

    assert (linear.held, linear.between) == (block.held, block.between)
    assert linear.hops > 3 * block.hops
