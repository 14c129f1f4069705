"""Memory of runs that others measured: each of them ran."""

from dataclasses import replace
from pathlib import Path

import pytest

from convoy.planner.memory.gpu import RELIABLE_SHARE, memory
from convoy.planner.step.work import Kernels
from convoy.planner.validation.published import MeasuredRun, blocks_that_fit, memory_of, published, read_measured
from tests.planner.validation.test_published import OTHERS
from tests.planner.workloads import LLAMA_8B, P5, workload


@pytest.mark.parametrize("rows", [published(), read_measured(OTHERS)], ids=["shipped", "others"])
def test_each_run_fits(rows: list[MeasuredRun]) -> None:
    shares = {(row.name, row.workload.machine.gpu, row.workload.ranks): memory_of(row).share for row in rows}

    assert max(shares.values()) <= 1, max(shares, key=lambda run: shares[run])


def test_the_tightest_are_those_whose_micro_batch_was_as_large_as_it_could_be() -> None:
    """MPT 350M, 1B and 3B: of Convoy's own loss they would take up to all there is."""
    fullest = sorted(published(), key=lambda row: -memory_of(row).share)[:8]

    assert {row.name for row in fullest} <= {"mpt-350m", "mpt-1b", "mpt-3b", "mpt-760m", "mpt-30b", "mpt-7b"}
    assert 0.89 < memory_of(fullest[0]).share < 0.93
    assert max(memory(row.workload).share for row in published()) > 0.99


def test_a_loss_that_keeps_the_logits_alone_spares_their_copy_in_fp32() -> None:
    """4 bytes of each logit at once, where Convoy's own has 6, and both gradients of the head."""
    job = workload(sequence_length=4096, micro_batch=8, global_batch=128)
    own, fused = memory(job), memory(job, fused_loss=True)
    logits = job.tokens_per_pass * job.model.vocab_size

    assert own.parts["logits"] > 6 * logits
    assert fused.parts["logits"] == 4 * logits
    twice = memory(replace(job, train=job.train.model_copy(update={"global_batch": 256})), fused_loss=True)
    assert twice.parts["logits"] == 4 * logits  # those of the pass before are gone by then


def test_whole_blocks_that_are_computed_again_take_what_lies_between_none_and_all() -> None:
    job = workload(1, P5, LLAMA_8B, micro_batch=4, sequence_length=8192, activation_checkpointing="selective")

    def taken(share: float | None) -> float:
        return memory_of(MeasuredRun("", "", job, Kernels(whole_blocks=share), 1.0)).share

    assert taken(0.0) > taken(0.5) > taken(1.0)
    assert taken(0.5) == pytest.approx((taken(0.0) + taken(1.0)) / 2, rel=1e-3)
    needed = blocks_that_fit(job)
    assert 0 < needed < 1
    assert taken(needed) == pytest.approx(RELIABLE_SHARE, rel=1e-3)


def test_what_fits_anyway_needs_no_block_computed_again() -> None:
    assert blocks_that_fit(workload(1, P5, LLAMA_8B, micro_batch=1, sequence_length=512)) == 0


def test_selective_runs_that_do_not_fit_by_operators_computed_blocks_again() -> None:
    """LLaMA 2 70B on 128 A100: by operators it would take 1.16 of what there is."""
    rows = [row for row in read_measured(OTHERS) if row.workload.train.activation_checkpointing == "selective"]
    whole = {row.name for row in rows if not memory(row.workload).fits}

    assert whole == {"llama2-70b"}
    assert all(row.kernels.whole_blocks for row in rows if not memory(row.workload).fits)


def test_a_run_that_could_not_fit_is_told_so(tmp_path: Path) -> None:
    job = workload(1, P5, LLAMA_8B, micro_batch=64, global_batch=512, sequence_length=65536)

    assert not memory_of(MeasuredRun("", "", job, Kernels(), 1.0)).fits
