"""What ranks send each other, against what the real code sends in a process group that only pretends."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from convoy.catalog.measured_machine import CollectiveTiming, MeasuredMachine
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.model.counts import parameter_count
from convoy.planner.measurements import Measurements
from convoy.planner.plan import plan
from convoy.planner.step.calibration import shipped_calibration
from convoy.planner.step.communication import Collective, _stage_collectives, busiest_collectives, communication_seconds
from convoy.planner.step.fsdp_units import stages
from convoy.planner.step.hardware import peak_rates
from convoy.planner.step.step_time import step_time
from convoy.planner.step.work import Kernels, pass_work
from convoy.planner.workload import UNNAMED, Machine, Workload, with_measured_fallback
from tests.planner import workloads
from tests.planner.tracked import Call, counted, counted_by_rank
from tests.planner.workloads import P4D, on_link, with_more_ranks
from tests.ranks import on_ranks

GPT = {"vocab_size": 500, "n_layers": 2, "d_model": 64, "n_heads": 4, "max_sequence_length": 32}
LLAMA = {**GPT, **workloads.LLAMA, "n_kv_heads": 4, "d_ff": 96}
WIDE = {**GPT, "vocab_size": 5001, "d_model": 1020, "n_layers": 3}
"""Of several of DDP's buckets."""

HOST = replace(P4D, gpu="cpu")


def workload(model: dict[str, Any], nodes: int = 1, machine: Machine = P4D, **keys: Any) -> Workload:
    return workloads.workload(nodes, machine, model, 32, **keys)


@pytest.mark.sampled(4)
@pytest.mark.processes
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
        (WIDE, {"strategy": "ddp", "reduce_dtype": "bf16"}),
        (WIDE, {"strategy": "ddp", "param_dtype": "fp32"}),
        ({**WIDE, "bias": False, "tied_embeddings": False}, {"strategy": "ddp", "machine": HOST}),
        (LLAMA, {"reduce_every_pass": False, "global_batch": 32, "micro_batch": 2}),
        (GPT, {"reshard_after_forward": False, "global_batch": 32, "micro_batch": 2}),
        (GPT, {"reshard_after_forward": False, "global_batch": 32, "micro_batch": 2, "machine": HOST}),
        (LLAMA, {"reshard_after_forward": False, "strategy": "hsdp", "nodes": 2, "machine": HOST}),
        (GPT, {"tensor": 4, "global_batch": 8, "micro_batch": 2, "activation_checkpointing": "full"}),
        (LLAMA, {"tensor": 4, "global_batch": 8, "micro_batch": 2, "activation_checkpointing": "selective"}),
        ({**GPT, "dropout": 0.1}, {"tensor": 4, "global_batch": 8, "activation_checkpointing": "full"}),
        (LLAMA, {"tensor": 2, "nodes": 2, "reduce_every_pass": False, "global_batch": 32, "micro_batch": 2}),
    ],
)
def test_it_is_what_the_real_code_sends(model: dict[str, Any], keys: dict[str, Any]) -> None:
    job = workload(model, **keys)

    assert total(busiest_collectives(job)) == counted(job)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("keys", [{}, {"wrap": "linear", "reshard_after_forward": False}])
def test_it_is_what_the_stages_of_a_pipeline_send(keys: dict[str, Any], tmp_path: Path) -> None:
    job = workload({**GPT, "tied_embeddings": False}, pipeline=2, global_batch=12, micro_batch=1, **keys)
    job = replace(job, machine=replace(P4D, ranks=4))
    each = on_ranks(4, counted_by_rank, str(tmp_path / "store"), job)

    assert total(busiest_collectives(job)) in each
    assert [total(_stage_collectives(job, stage)) for stage in stages(job)] == [each[0], each[2]]


@pytest.mark.parametrize(("ranks", "reduce_dtype"), [(2, "fp32"), (2, "bf16"), (3, "fp32")])
def test_it_is_what_ranks_of_a_host_send_by_ddp(ranks: int, reduce_dtype: str, tmp_path: Path) -> None:
    keys = {"strategy": "ddp", "reduce_dtype": reduce_dtype, "global_batch": 6, "micro_batch": 1}
    job = workload({**WIDE, "d_model": 512}, machine=replace(HOST, ranks=ranks), **keys)

    for each in on_ranks(ranks, counted_by_rank, str(tmp_path / "store"), job):
        assert total(busiest_collectives(job)) == each


def total(collectives: Iterable[Collective]) -> Counter[Call]:
    told: Counter[Call] = Counter()
    for one in collectives:
        told[Call(one.kind, one.ranks, one.bytes)] += one.number
    return told


def moved(job: Workload, **of: Any) -> float:
    return sum(c.sent_bytes for c in busiest_collectives(job) if all(getattr(c, key) == of[key] for key in of))


def test_a_rank_alone_sends_nothing() -> None:
    alone = replace(workload(GPT), machine=replace(P4D, ranks=1))

    assert busiest_collectives(alone) == ()


def test_each_parameter_is_gathered_twice_and_reduced_once() -> None:
    """8 bytes of each: two gathers in bf16 and a reduction in fp32."""
    model = {**GPT, "n_layers": 100, "vocab_size": 8}
    bytes_moved = moved(workload(model)) / (7 / 8)

    assert bytes_moved == pytest.approx(8 * parameter_count(TransformerConfig(**model)), rel=0.01)


def test_replicas_exchange_what_a_rank_keeps_once_a_step() -> None:
    job = workload(GPT, nodes=4, strategy="hsdp", global_batch=128, micro_batch=1)
    between = [c for c in busiest_collectives(job) if c.crosses_machines(8) and c.payload == "gradients"]

    assert {(c.kind, c.ranks, c.stride) for c in between} == {("all_reduce", 4, 8)}
    assert sum(c.bytes * c.number for c in between) == 4 * stages(job)[0].shard_elements
    assert not any(c.crosses_machines(8) for c in busiest_collectives(job) if c.payload == "weights")


def test_a_stage_in_the_middle_hands_on_each_micro_batch_both_ways() -> None:
    job = workload({**LLAMA, "n_layers": 4, "vocab_size": 8}, pipeline=4, global_batch=16, micro_batch=1)
    (handed_on,) = [c for c in busiest_collectives(job) if c.kind == "send"]

    assert (handed_on.number, handed_on.bytes, handed_on.stride) == (2 * 8, 32 * 64 * 2, 2)


def test_what_is_reduced_once_a_step_moves_less() -> None:
    keys: dict[str, Any] = {"global_batch": 64, "micro_batch": 2}

    assert moved(workload(GPT, **keys), kind="reduce_scatter") == 4 * moved(
        workload(GPT, **keys, reduce_every_pass=False), kind="reduce_scatter"
    )


LINE = CollectiveTiming(latency_seconds=1e-3, bytes_per_second=1e9, ranks=2)
MEASURED = MeasuredMachine(
    device="AMD EPYC", kind="cpu", dtype="bf16", threads=1, ranks=2, matmul_flops=4e11, attention_flops=4e10,
    memory_bytes_per_second=2e10, operation_seconds=2e-6, gather=LINE, reduce=LINE,
)  # fmt: skip
MODEL = {"vocab_size": 4096, "n_layers": 4, "d_model": 192, "n_heads": 3, "max_sequence_length": 256}


def job(measured: MeasuredMachine | None = MEASURED, ranks: int = 2, **parallel: Any) -> Workload:
    machine = Machine("cpu", ranks, 8e9, 16e9, 0.0, 0.0, measured)
    return workloads.workload(1, machine, MODEL, 256, global_batch=8, micro_batch=8, **parallel)


def unnamed_gpu(**measured: object) -> Machine:
    found = {"kind": "cuda", "device": "NVIDIA X1", "matmul_flops": 3e14, "memory_bytes_per_second": 2e12, **measured}
    return with_measured_fallback(Machine(UNNAMED, 2, 0.0, 16e9, 0.0, 0.0), MEASURED.model_copy(update=found))


def test_every_collective_of_a_step_takes_its_line() -> None:
    sent = [c for c in busiest_collectives(job()) if c.payload in ("weights", "gradients")]
    found = communication_seconds(job(), MEASURED)
    by_hand = sum(c.number * (1e-3 + c.bytes / 1e9) for c in sent)
    assert found.gather + found.reduce == pytest.approx(by_hand)
    assert found.tensor == pytest.approx(2e-3, rel=1e-3)  # loss and norm together: a reduction and a gather


def test_a_rank_alone_sends_nothing_and_casts_all_the_same() -> None:
    found = communication_seconds(job(ranks=1), MEASURED)
    assert found.total == 0
    assert found.copied_bytes == communication_seconds(job(), MEASURED).copied_bytes > 0


def test_more_ranks_than_measured_have_more_hops_and_a_larger_share_to_carry() -> None:
    two, four = communication_seconds(job(), MEASURED), communication_seconds(job(ranks=4), MEASURED)
    sizes = [c for c in busiest_collectives(job(ranks=4)) if c.payload == "weights"]
    assert four.gather == pytest.approx(sum(c.number * (3e-3 + c.bytes / 1e9 * 1.5) for c in sizes))
    assert four.gather > two.gather


def test_one_rank_s_measurement_tells_nothing_of_a_network() -> None:
    alone = MEASURED.model_copy(update={"ranks": 1, "gather": None, "reduce": None})
    assert step_time(job(alone, ranks=1)).total > 0
    with pytest.raises(ValueError, match="one rank measured it"):
        step_time(job(alone))
    with pytest.raises(ValueError, match="one rank measured it"):
        step_time(replace(job(), machine=unnamed_gpu(ranks=1, gather=None, reduce=None)))
    with pytest.raises(ValueError, match="2 ranks without a collective"):
        step_time(replace(job(), machine=unnamed_gpu(gather=None, reduce=None)))


def test_copies_are_planned_by_their_sums_alone() -> None:
    copies = MEASURED.model_copy(update={"gather": None, "reduce": None, "all_reduce": LINE})
    asked = job(copies, strategy="ddp")
    by_hand = sum(c.number * LINE.seconds(c.bytes) for c in busiest_collectives(asked))
    assert communication_seconds(asked, copies).total == pytest.approx(by_hand)
    assert step_time(asked).reduce > 0
    with pytest.raises(ValueError, match="needs a measured all-gather"):
        step_time(job(copies))


def test_a_line_of_some_of_the_ranks_is_that_of_as_many() -> None:
    """hsdp, two times two: each collective is one of two ranks, which is what was measured."""
    four = MEASURED.model_copy(update={"ranks": 4, "all_reduce": LINE})
    asked = job(four, ranks=4, strategy="hsdp", shard_size=2)
    sent = [c for c in busiest_collectives(asked) if c.payload in ("weights", "gradients")]
    assert {c.ranks for c in sent} == {2}
    found = communication_seconds(asked, four)
    assert found.gather + found.reduce == pytest.approx(sum(c.number * LINE.seconds(c.bytes) for c in sent))
    gpu = unnamed_gpu(ranks=4)
    assert peak_rates(gpu).between_bytes_per_second == pytest.approx(LINE.bytes_per_second / 2)


def test_what_one_rank_hands_to_another_passes_its_link_whole() -> None:
    """Of a gather of two ranks each link carries half."""
    staged = job(pipeline=2)
    (send,) = (c for c in busiest_collectives(staged) if c.kind == "send")
    others = [c for c in busiest_collectives(staged) if c.payload == "loss and norm"]
    rest = sum(c.number * 2 * LINE.seconds(c.bytes) for c in others)
    handed_on = send.number * (1e-3 + send.bytes / (LINE.bytes_per_second / 2))
    assert communication_seconds(staged, MEASURED).tensor == pytest.approx(rest + handed_on)


def test_a_stage_waits_for_what_the_others_send_too() -> None:
    slow = MEASURED.model_copy(update={"gather": LINE.model_copy(update={"latency_seconds": 0.1})})
    before, after = (communication_seconds(job(pipeline=2), machine).tensor for machine in (MEASURED, slow))
    staged = job(slow, pipeline=2)
    later = step_time(staged).bubble - step_time(job(pipeline=2)).bubble
    assert later == pytest.approx((after - before) / staged.passes)


def test_copies_on_unnamed_gpus_have_the_link_that_their_sums_had() -> None:
    """Each link carries a share of 7 / 8 of the message twice."""
    sums = CollectiveTiming(latency_seconds=1e-4, bytes_per_second=6e8, ranks=8)
    gpu = unnamed_gpu(ranks=8, gather=None, reduce=None, all_reduce=sums)
    assert peak_rates(gpu).between_bytes_per_second == pytest.approx(2 * 7 / 8 * 6e8)


def test_on_measured_gpus_nothing_is_charged_on_top_of_what_products_and_attention_took() -> None:
    gpu = unnamed_gpu(attention_flops=2e14)
    asked = replace(job(), machine=gpu)
    done = pass_work(asked, Kernels())
    matmul = asked.passes * (done.blocks * done.matmul_flops * (3 + done.again.matmul) + 3 * done.head_flops) / 3e14
    scores = asked.passes * done.blocks * done.attention_flops * (1 + done.attention_backward + done.again.attention)
    time = step_time(asked)
    assert time.matmul == pytest.approx(matmul, rel=0.01)
    assert time.attention == pytest.approx(scores / 2e14, rel=0.01)


def test_a_link_hides_half_of_the_shorter_of_its_own_time_and_that_of_the_ranks() -> None:
    size, latency = 1e6, LINE.latency_seconds
    own, sent = size / LINE.bytes_per_second, size / 2 / 1e8
    assert on_link(LINE, 1e8, 2).seconds(size) == pytest.approx(latency + own / 2 + sent)
    assert on_link(LINE, 1e10, 2).seconds(size) == pytest.approx(latency + own + size / 2 / 1e10 / 2)
    assert on_link(LINE, 1e20, 4).seconds(size) == pytest.approx(LINE.seconds(size))


def test_several_ranks_share_the_update_and_send() -> None:
    took = with_more_ranks(job(), MEASURED, alone_seconds=0.1, optimizer_seconds=0.01)
    assert took == pytest.approx(0.1 - 0.005 + communication_seconds(job(), MEASURED).total)


def test_on_a_cpu_nothing_is_hidden() -> None:
    time = step_time(job())
    found = communication_seconds(job(), MEASURED)
    assert (time.gather, time.reduce, time.tensor) == (found.gather, found.reduce, found.tensor)
    slower = MEASURED.model_copy(update={"matmul_flops": 1e9})
    assert step_time(job(slower)).gather == time.gather  # though there is more to hide behind


def test_each_rate_that_was_measured_sets_its_part() -> None:
    for rate, part in (
        ("matmul_flops", "matmul"), ("attention_flops", "attention"), ("memory_bytes_per_second", "memory"),
    ):  # fmt: skip
        twice = MEASURED.model_copy(update={rate: 2 * getattr(MEASURED, rate)})
        assert getattr(step_time(job(twice)), part) == pytest.approx(getattr(step_time(job()), part) / 2, rel=0.01)
    slow = MEASURED.model_copy(update={"operation_seconds": 4e-6})
    assert step_time(job(slow)).kernels == pytest.approx(2 * step_time(job()).kernels, rel=0.01)


def test_what_was_measured_in_another_type_plans_nothing() -> None:
    with pytest.raises(ValueError, match="measured in bf16"):
        peak_rates(job().machine, "fp32")


def test_the_default_configuration_is_planned_on_this_host_once_it_was_measured() -> None:
    config = RunConfig.model_validate({"model": MODEL, "cluster": {"nodes": 2}})
    told = plan(config, Measurements(measured=MEASURED, host_bytes=16e9))
    assert told.step is not None
    assert told.step.seconds == pytest.approx(sum(told.step.parts.values()))
    assert told.calibration.startswith(str(shipped_calibration("cpu").date))
    without = plan(config, Measurements(host_bytes=16e9))
    assert without.step is None


def test_an_unnamed_gpu_hides_what_it_sends_and_reaches_what_it_measured() -> None:
    machine = unnamed_gpu(attention_flops=2e14)
    gpu = machine.measured
    assert gpu is not None
    time = step_time(replace(job(), machine=machine))
    assert 0 < time.total < 1
    assert shipped_calibration("cuda").constants.matmul_efficiency == {"cuda": 1.0}
    assert shipped_calibration("cuda").constants.kernel_seconds == shipped_calibration().constants.kernel_seconds
    known = Machine("A100", 2, 40 * 2**30, 16e9, 3e11, 5e10)
    assert with_measured_fallback(known, gpu) == known  # the catalog is asked first
    assert with_measured_fallback(job(None).machine, gpu) == job(None).machine  # a GPU tells nothing of a CPU
