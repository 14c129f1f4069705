"""What a block computes, and computes again, against torch's counter over the code that trains."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from convoy.model.build import build_model
from convoy.model.counts import flops_per_token
from convoy.parallel.fsdp import prepared_blocks
from convoy.planner.step.speed import recomputed_flops_per_token
from convoy.planner.step.work import Kernels, linear_layers, work
from convoy.planner.workload import Machine, Workload
from tests.planner.workloads import workload

ONE = Machine("A100", 1, 40 * 2**30, 64 * 2**30, 0.0, 0.0)
GPT: dict[str, Any] = {"n_layers": 3, "d_model": 32, "n_heads": 4, "vocab_size": 50, "bias": False}
LLAMA = GPT | {"n_kv_heads": 2, "d_ff": 96, "norm": "rmsnorm", "positions": "rotary", "mlp": "swiglu"}
LLAMA |= {"tied_embeddings": False}
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
    list(prepared_blocks(model, of.train))
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
    done = work(of, Kernels())
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
        return work(workload(1, ONE, model, activation_checkpointing=mode), Kernels()).again.matmul

    assert share(GPT, "full") == pytest.approx(8 / 12)
    assert share(GPT, "selective") == pytest.approx(1 / 12)
    assert share(llama_7b, "full") == pytest.approx((12.0625 - 2.6875) / 12.0625)
    assert share(llama_7b, "selective") == pytest.approx((1 + 2.6875) / 12.0625)


def test_others_compute_again_by_other_rules() -> None:
    """Whole forward passes of blocks before torch 2.1; every second of seven products; some blocks as a whole."""
    full, selective = (job("llama", activation_checkpointing=mode) for mode in ("full", "selective"))
    separate = linear_layers(full.model, separate=True)
    sizes = [rows * columns for rows, columns in separate]

    assert sum(sizes) == sum(rows * columns for rows, columns in linear_layers(full.model))
    assert work(full, Kernels(stops_early=False)).again.matmul == 1
    by_operator = work(selective, Kernels(separate_projections=True)).again
    assert by_operator.matmul == pytest.approx((sizes[1] + sizes[3] + sizes[5]) / sum(sizes))
    by_block, whole = work(selective, Kernels(whole_blocks=0.25)).again, work(full, Kernels()).again
    assert (by_block.matmul, by_block.attention) == (whole.matmul / 4, 0.25)


def test_what_is_kept_is_not_moved_again() -> None:
    none, selective, full = (
        work(job("llama", activation_checkpointing=mode), Kernels()).again.rest
        for mode in ("none", "selective", "full")
    )
    assert none == 0 < selective < full < 1
