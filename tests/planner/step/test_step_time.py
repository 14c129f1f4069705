"""What a step takes: that the parts are the whole, and that they depend on things as physics has it."""

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from convoy.model.build import build_model
from convoy.model.counts import flops_per_token
from convoy.parallel.fsdp import wrap_and_compile_blocks
from convoy.planner.step.hardware import peak_rates
from convoy.planner.step.step_time import StepTime, gpu_tokens_per_second, recomputed_flops_per_token, step_time
from convoy.planner.step.work import Kernels, linear_layers, pass_work
from convoy.planner.workload import Machine, Workload
from tests.campaign import examples
from tests.planner import workloads
from tests.planner.workloads import GPT_7B, LLAMA_8B, P4D, P5, workload

pytestmark = pytest.mark.campaign

PARALLEL = st.sampled_from(
    [
        {},
        {"reshard_after_forward": False},
        {"strategy": "hsdp"},
        {"strategy": "hsdp", "shard_size": 4},
        {"strategy": "ddp"},
        {"wrap": "linear"},
        {"reduce_every_pass": False},
        {"tensor": 2},
        {"tensor": 4, "pipeline": 2},
        {"pipeline": 2},
    ]
)


@st.composite
def jobs(draw: st.DrawFn) -> Workload:
    micro = draw(st.integers(1, 4))
    nodes = draw(st.sampled_from([1, 2, 4, 16]))
    machine = draw(st.sampled_from([P4D, P5]))
    parallel = draw(PARALLEL)
    selective = parallel.get("wrap") != "linear"
    return workload(
        nodes,
        machine,
        draw(st.sampled_from([GPT_7B, LLAMA_8B])),
        draw(st.sampled_from([512, 2048, 8192])),
        micro_batch=micro,
        global_batch=micro * nodes * machine.ranks * draw(st.integers(1, 3)),
        activation_checkpointing=draw(st.sampled_from(["none", "full", *(["selective"] if selective else [])])),
        compile=draw(st.booleans()),
        reduce_dtype=draw(st.sampled_from(["bf16", "fp32"])),
        **parallel,
    )


@given(jobs())
@examples(60)
def test_parts_are_positive_and_add_up_to_the_step(job: Workload) -> None:
    time = step_time(job)
    parts = dataclasses.asdict(time)

    assert all(seconds >= 0 for seconds in parts.values())
    assert time.total == pytest.approx(sum(parts.values()))
    assert gpu_tokens_per_second(job, time) * job.ranks * time.total == pytest.approx(job.tokens_per_step)


@given(jobs(), st.sampled_from(["nvlink_bytes_per_second", "network_bytes_per_second"]), st.floats(1.01, 20))
@examples(60)
def test_more_bandwidth_is_never_slower(job: Workload, link: str, factor: float) -> None:
    faster = replace(job, machine=replace(job.machine, **{link: factor * getattr(job.machine, link)}))

    assert step_time(faster).total <= step_time(job).total * (1 + 1e-12)


@given(jobs())
@examples(60)
def test_compiling_is_never_slower_and_recomputing_never_faster(job: Workload) -> None:
    def total(**train: Any) -> float:
        return step_time(replace(job, train=job.train.model_copy(update=train))).total

    assert total(compile=True) <= total(compile=False)
    assert total(activation_checkpointing="none") <= total(activation_checkpointing="selective")
    assert total(activation_checkpointing="selective") <= total(activation_checkpointing="full")


def compute(time: StepTime) -> float:
    return time.matmul + time.attention + time.memory + time.kernels


def test_recomputing_all_blocks_is_two_ninths_more_products_and_a_third_of_the_rest() -> None:
    none, full = (step_time(workload(activation_checkpointing=how)) for how in ("none", "full"))

    # The last product is not made again, nor is the head, and attention's backward is 2.5 forwards.
    assert 1.19 < full.matmul / none.matmul < 1 + 2 / 9
    assert full.attention == pytest.approx(none.attention * 4.5 / 3.5)
    assert 1.2 < compute(full) / compute(none) < 1.26


def test_a_slow_network_is_hidden_until_it_is_slower_than_the_computation() -> None:
    def exposed(gbps: float, micro: int) -> float:
        job = workload(8, replace(P4D, network_bytes_per_second=gbps * 1e9 / 8), micro_batch=micro)
        time = step_time(replace(job, train=job.train.model_copy(update={"global_batch": 64 * micro})))
        return (time.gather + time.reduce) / time.total

    assert exposed(1600, 8) < 0.05
    assert exposed(100, 1) > 0.8
    assert exposed(100, 1) > exposed(400, 1) > exposed(400, 8)


def test_sharding_within_machines_spares_the_network() -> None:
    slow = replace(P4D, network_bytes_per_second=10e9)
    flat = workload(8, slow, global_batch=512)
    hybrid = workload(8, slow, strategy="hsdp", global_batch=512)

    assert flat.passes == 4
    assert step_time(hybrid).total < 0.6 * step_time(flat).total


@pytest.mark.parametrize(
    ("key", "parts"), [("reduce_every_pass", ["reduce"]), ("reshard_after_forward", ["packing", "gather"])]
)
def test_messages_that_are_spared_take_no_time(key: str, parts: list[str]) -> None:
    more, fewer = (step_time(workload(8, global_batch=512, **{key: value})) for value in (True, False))

    assert all(getattr(fewer, part) < getattr(more, part) for part in parts)


def test_one_rank_sends_nothing() -> None:
    time = step_time(workload(1, replace(P5, ranks=1)))

    assert time.gather == time.reduce == time.packing == time.tensor == time.straggling == 0


def test_a_pipeline_waits_for_its_first_and_last_passes() -> None:
    def bubble(passes: int) -> float:
        time = step_time(workload(1, P5, pipeline=4, micro_batch=1, global_batch=2 * passes))
        return time.bubble / (compute(time) + time.bubble + time.host)

    # (stages - 1) / (passes + stages - 1), as all passes are alike; and a little for what stages hand on.
    assert bubble(4) == pytest.approx(3 / 7, rel=0.01)
    assert bubble(32) == pytest.approx(3 / 35, rel=0.03)


def test_sharing_products_shares_their_work_and_adds_up_activations() -> None:
    whole, shared = (workload(1, P5, tensor=ranks, global_batch=16) for ranks in (1, 8))

    assert step_time(shared).matmul == pytest.approx(step_time(whole).matmul, rel=0.1)
    assert step_time(shared).tensor > 0 == step_time(whole).tensor


def test_fp8_quickens_the_linear_layers_alone() -> None:
    job = workload(1, P5)
    bf16, fp8 = step_time(job), step_time(job, kernels=Kernels(matmul="fp8"))

    assert fp8.matmul < 0.8 * bf16.matmul
    assert (fp8.attention, fp8.memory) == (bf16.attention, bf16.memory)


def test_attention_as_written_moves_its_scores() -> None:
    fused, plain = (step_time(workload(attention=how)) for how in ("fused", "plain"))

    assert plain.memory > 2 * fused.memory


def test_what_is_sent_while_the_gpu_waits_for_its_cpu_takes_no_time() -> None:
    """A narrow model and few tokens: the CPU sets the pace, until the network is slower than it."""

    def step(gbps: float) -> StepTime:
        narrow = {**GPT_7B, "d_model": 512, "n_heads": 8}
        return step_time(workload(2, replace(P5, network_bytes_per_second=gbps * 1e9 / 8), narrow, sequence_length=128))

    fast, middling, slow = step(3200), step(400), step(10)
    assert fast.host > middling.host > 0 == slow.host
    assert middling.gather + middling.reduce > fast.gather + fast.reduce
    assert middling.total == pytest.approx(fast.total)
    assert slow.total > 2 * fast.total


def test_measured_peaks_stand_in_for_the_catalog_s() -> None:
    job = workload(1)
    known = peak_rates(job.machine)
    slow = step_time(job, machine=replace(known, flops=known.flops / 2))

    assert step_time(job, machine=known) == step_time(job)
    assert slow.attention == pytest.approx(2 * step_time(job).attention)


def test_what_cannot_be_told_is_refused() -> None:
    with pytest.raises(ValueError, match="cpu: its bf16 peak is not in the catalog"):
        step_time(workload(machine=replace(P4D, gpu="cpu")))
    with pytest.raises(ValueError, match="cpu_offload"):
        step_time(workload(cpu_offload=True))


ONE = Machine("A100", 1, 40 * 2**30, 64 * 2**30, 0.0, 0.0)
GPT: dict[str, Any] = {"n_layers": 3, "d_model": 32, "n_heads": 4, "vocab_size": 50, "bias": False}
LLAMA = GPT | workloads.LLAMA | {"n_kv_heads": 2, "d_ff": 96}
SHAPES = {"gpt": GPT, "biases": GPT | {"bias": True}, "dropout": GPT | {"dropout": 0.1}, "llama": LLAMA}
SHAPES["llama dropout"] = LLAMA | {"dropout": 0.1}


def job(shape: str, **train: Any) -> Workload:
    return workload(1, ONE, SHAPES[shape], sequence_length=16, **train)


def counted(of: Workload) -> tuple[int, int]:
    """Operations of linear layers and the head, and of attention, of one forward and backward pass. The counter knows
    fused attention on GPUs alone, as products of all scores; here the same is told of the kernel for CPUs."""
    aten = torch.ops.aten
    kernel, back = (
        aten._scaled_dot_product_flash_attention_for_cpu,
        aten._scaled_dot_product_flash_attention_for_cpu_backward,
    )
    known = {
        kernel: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
        back: lambda g, q, k, v, *_, **__: sdpa_backward_flop_count(g, q, k, v),
    }
    fused = of.train.attention == "fused"
    model = build_model(of.model, of.train.loss_chunk_tokens, "cpu", fused_attention=fused)
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, 0.01)
    list(wrap_and_compile_blocks(model, of.train))
    tokens_bs = torch.zeros(of.sequences_per_pass, of.sequence_length, dtype=torch.int64)
    with FlopCounterMode(display=False, custom_mapping=known) as counter:
        model(tokens_bs, tokens_bs).backward()
    told = counter.get_flop_counts()["Global"]
    linear, attention = (aten.mm, aten.addmm), (aten.bmm, kernel, back)
    return sum(told.get(key, 0) for key in linear), sum(told.get(key, 0) for key in attention)


@pytest.mark.parametrize("attention", ["fused", "plain"])
@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize("shape", SHAPES)
def test_operations_are_those_that_torch_counts(shape: str, mode: str, attention: str) -> None:
    of = job(shape, activation_checkpointing=mode, attention=attention)
    done = pass_work(of, Kernels())
    linear = done.blocks * done.matmul_flops * (3 + done.again.matmul) + 3 * done.head_flops
    # The counter does not know of a causal mask: it counts all scores, of which fused attention makes half.
    scores = done.attention_flops * (1 if attention == "plain" else 2)
    attended = done.blocks * scores * (1 + done.attention_backward + done.again.attention)

    assert (linear, attended) == pytest.approx(counted(of), rel=1e-12)


def test_mfu_and_hfu_count_what_torch_does_but_for_scores_that_attention_makes_again() -> None:
    """6 N + 12 L d S is exact for plain attention, whose scores are kept; of N, products alone are counted by torch."""
    for mode in ("none", "full"):
        of = job("llama", activation_checkpointing=mode, attention="plain")
        model_flops = flops_per_token(of.model, of.sequence_length)
        share = (model_flops + recomputed_flops_per_token(of)) / model_flops
        norms = 6.0 * (2 * of.model.n_layers + 1) * of.model.d_model
        whole = (model_flops - norms) * of.tokens_per_pass
        assert sum(counted(of)) == pytest.approx(share * whole, rel=0.01)


def test_shares_of_models_that_people_train() -> None:
    """By hand: of a GPT block's 12 d d, the last product is 4, the second 1; of LLaMA 2 7B, 3 and 2.69 of 12.06."""
    llama_7b = LLAMA | {"d_model": 4096, "n_heads": 32, "n_kv_heads": 32, "d_ff": 11008}

    def share(model: dict[str, Any], mode: str) -> float:
        return pass_work(workload(1, ONE, model, activation_checkpointing=mode), Kernels()).again.matmul

    assert share(GPT, "full") == pytest.approx(8 / 12)
    assert share(GPT, "selective") == pytest.approx(1 / 12)
    assert share(llama_7b, "full") == pytest.approx((12.0625 - 2.6875) / 12.0625)
    assert share(llama_7b, "selective") == pytest.approx((1 + 2.6875) / 12.0625)


def test_others_compute_again_by_other_rules() -> None:
    """Whole forward passes of blocks before torch 2.1; every second of seven products; some blocks as a whole."""
    full, selective = (job("llama", activation_checkpointing=mode) for mode in ("full", "selective"))
    separate = linear_layers(full.model, separate_qkv=True)
    sizes = [rows * columns for rows, columns in separate]

    assert sum(sizes) == sum(rows * columns for rows, columns in linear_layers(full.model))
    assert pass_work(full, Kernels(stops_early=False)).again.matmul == 1
    by_operator = pass_work(selective, Kernels(separate_projections=True)).again
    assert by_operator.matmul == pytest.approx((sizes[1] + sizes[3] + sizes[5]) / sum(sizes))
    by_block, whole = pass_work(selective, Kernels(whole_blocks=0.25)).again, pass_work(full, Kernels()).again
    assert (by_block.matmul, by_block.attention) == (whole.matmul / 4, 0.25)


def test_what_is_kept_is_not_moved_again() -> None:
    none, selective, full = (
        pass_work(job("llama", activation_checkpointing=mode), Kernels()).again.rest
        for mode in ("none", "selective", "full")
    )
    assert none == 0 < selective < full < 1
