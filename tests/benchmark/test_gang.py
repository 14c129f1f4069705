"""Groups on real gangs of this host: what is measured, what is written, and what is told of a gang that fails."""

import os
from pathlib import Path

import pytest

from convoy.benchmark.groups import Ranks, VariantSpec
from convoy.benchmark.memory_estimate import with_largest_size
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.figures import losses_agree, speedup, tokens_per_second
from convoy.benchmark.results.values import LARGEST_MODEL_PARAMETERS, RANK_MEMORY_BYTES
from convoy.benchmark.suites.scaling import variants_of
from convoy.benchmark.suites.strategies import SUITE, model_parallel_group
from convoy.benchmark.suites.strategies import variants_of as strategies
from convoy.benchmark.suites.throughput import PLAIN
from convoy.launch.benchmark.groups import GroupResult, local_gang_runner, run_groups, unmeasured_case
from tests.benchmark.benches import QUICK, a_group, cases_of_gang, state_bytes
from tests.benchmark.cases import replaced

pytestmark = pytest.mark.slow

SEQUENCE = 16


@pytest.fixture(scope="module")
def throughput(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    """The baseline, ours, and one technique, on two nodes."""
    variants = (
        VariantSpec(name="ours"),
        VariantSpec(name="baseline", kind="baseline", changes=PLAIN),
        VariantSpec(name="micro batch 1", changes={"train": {"micro_batch": 1}}),
        VariantSpec(name="bf16", changes={"train": {"param_dtype": "bf16"}}),
        VariantSpec(name="CPU offload", changes={"parallel": {"cpu_offload": True}}, needs_gpu=True),
    )
    root = str(tmp_path_factory.mktemp("root"))
    return cases_of_gang(a_group(root, *variants, nodes=2, suite="memory"), nodes=2)  # which weighs its cases, too


def test_every_case_has_its_blocks_and_its_losses(throughput: dict[str, Case]) -> None:
    assert list(throughput) == ["baseline", "bf16", "micro batch 1", "ours"]
    for case in throughput.values():
        assert [block.number for block in case.blocks] == list(range(6))
        assert case.warm_up_steps == 16
        assert case.tokens_per_step == case.config["train"]["global_batch"] * case.config["data"]["sequence_length"]
        assert losses_agree(case, throughput["ours"], 1e-2 if case.name == "bf16" else 1e-3)
        rate = tokens_per_second(case)
        assert rate.low <= rate.estimate <= rate.high
    assert throughput["baseline"].parameters == throughput["ours"].parameters > 0
    assert throughput["micro batch 1"].config["train"]["micro_batch"] == 1
    assert speedup(throughput["baseline"], throughput["ours"]).n == 6


def test_memory_is_that_of_each_case_alone(throughput: dict[str, Case]) -> None:
    for case in throughput.values():
        parts = [value for name, value in case.values.items() if name.startswith("memory_")]
        assert case.memory_peak_bytes == sum(parts) > 0
        (host,) = case.hosts  # two nodes share this one
        assert (host.ranks, host.offloaded_bytes) == (2, 0)
        assert case.memory_peak_bytes < host.memory_peak_bytes <= 2 * case.memory_peak_bytes
        assert host.sent_bytes < min(block.network_bytes or 0.0 for block in case.blocks)  # which has the loopback
    ours, baseline = throughput["ours"].values, throughput["baseline"].values
    assert ours["memory_parameters_bytes"] < 0.6 * baseline["memory_parameters_bytes"]
    assert baseline["memory_parameters_bytes"] == 4 * throughput["baseline"].parameters


def test_what_needs_a_gpu_is_left_out_and_told(throughput: dict[str, Case]) -> None:
    assert throughput["ours"].not_measured == {"CPU offload": "there is no GPU: everything is in host memory already"}
    assert not throughput["bf16"].not_measured


def test_what_a_step_takes_was_predicted_before_from_what_ranks_measured(throughput: dict[str, Case]) -> None:
    for name in ("ours", "micro batch 1", "bf16"):
        case = throughput[name]
        told = case.predicted
        assert (told.machine.kind, told.machine.ranks, told.machine.dtype) == (
            "cpu", 2, case.config["train"]["param_dtype"],
        )  # fmt: skip
        assert told.step_seconds > 0
        # The record lacks what threads of gloo freed meanwhile: it may be too high, never too low.
        recorded = case.memory_peak_bytes or 0
        assert 0.5 < told.peak_bytes / recorded < 1.02, (name, told.peak_bytes, recorded)
    baseline = throughput["baseline"].predicted
    assert (baseline.step_seconds, baseline.peak_bytes) == (None, None)


def test_parts_make_up_a_step_and_two_ranks_send_gradients(throughput: dict[str, Case]) -> None:
    ours = throughput["ours"]
    for block in ours.blocks:
        assert set(block.parts) == {"data", "forward", "exchange", "backward", "optimizer"}
        assert sum(block.parts.values()) > 0
        assert block.network_bytes > 4 * ours.parameters  # each rank sends half of the gradient, and half the weights


def test_where_it_was_measured_is_in_it(throughput: dict[str, Case]) -> None:
    case = throughput["ours"]
    assert (case.hardware.nodes, case.hardware.ranks, case.hardware.jobs) == (1, 2, 1)  # on one host
    assert case.hardware.pinned
    assert case.hardware.cores == len(os.sched_getaffinity(0))
    assert case.hardware.matmul_tflops == throughput["baseline"].hardware.matmul_tflops
    assert case.hardware.matmul_tflops != throughput["bf16"].hardware.matmul_tflops  # a type has a rate of its own
    assert case.hardware.peak_tflops is None
    assert case.flops_per_token is not None
    assert {"convoy", "python", "torch"} <= case.provenance.versions.keys()
    assert "transformers" in throughput["baseline"].provenance.versions
    assert "root" not in case.config


@pytest.fixture(scope="module")
def failed_and_not(tmp_path_factory: pytest.TempPathFactory) -> tuple[GroupResult, GroupResult]:
    """Three ranks of a gang of two, which cannot be, and then the scaling suite."""
    good = a_group(str(tmp_path_factory.mktemp("root")), *variants_of(4, Ranks(2, 2)), suite="scaling")
    bad = replaced(good, name="bad", variants=(VariantSpec(name="three", ranks=3),), baseline=None)
    first, second = run_groups([bad, good], local_gang_runner("bench", 1, 2), print)
    return first, second


def test_groups_run_one_after_the_other_and_a_failure_is_told(failed_and_not: tuple[GroupResult, GroupResult]) -> None:
    first, second = failed_and_not
    assert first.began < first.ended <= second.began < second.ended
    assert "ranks = 3: must divide the ranks of the gang, 2" in first.failure
    (case,) = first.cases
    assert (case.status, case.name, case.blocks) == ("failed", "three", ())
    assert "ranks = 3" in case.reason
    assert second.failure == ""
    assert {case.status for case in second.cases} == {"measured"}


@pytest.fixture
def scaling(failed_and_not: tuple[GroupResult, GroupResult]) -> dict[str, Case]:
    return {case.name: case for case in failed_and_not[1].cases}


def test_one_rank_trains_while_the_other_waits(scaling: dict[str, Case]) -> None:
    told = {
        name: (case.hardware.ranks, case.hardware.jobs, case.tokens_per_step // SEQUENCE)
        for name, case in scaling.items()
    }
    assert told == {
        "1 rank": (1, 1, 2), "2 jobs of 1 rank": (2, 2, 4), "2 ranks, weak": (2, 1, 4), "2 ranks, strong": (2, 1, 2),
    }  # fmt: skip
    assert all(len(case.blocks) == 6 for case in scaling.values())
    assert "communication_seconds" in scaling["2 ranks, weak"].values
    assert {name: case.hosts[0].ranks for name, case in scaling.items()} == {
        name: case.hardware.ranks for name, case in scaling.items()
    }
    assert {name for name, case in scaling.items() if case.values.get("link_bytes_per_second", 0) > 0} == {
        "2 ranks, weak", "2 ranks, strong",
    }  # fmt: skip


def test_the_same_batch_gives_the_same_losses_on_any_number_of_ranks(scaling: dict[str, Case]) -> None:
    assert losses_agree(scaling["2 ranks, strong"], scaling["1 rank"], 1e-4)
    assert not losses_agree(scaling["2 ranks, weak"], scaling["1 rank"], 1e-4)


def test_only_ranks_that_train_together_talk(scaling: dict[str, Case]) -> None:
    def sent(name: str) -> float:
        return min(block.network_bytes or 0.0 for block in scaling[name].blocks)

    together = sent("2 ranks, weak")
    assert together > 4 * scaling["2 ranks, weak"].parameters
    assert sent("1 rank") < together / 4
    assert sent("2 jobs of 1 rank") < together / 4


@pytest.mark.sampled(2)
def test_strategies_compute_the_same(tmp_path: Path) -> None:
    ranks = Ranks(2, 2, 2**30)
    run = a_group(str(tmp_path / "root"), VariantSpec(name="any")).run
    variants = [with_largest_size(spec, run, ranks) for spec in strategies(2)]
    group = a_group(str(tmp_path / "root"), *variants, suite="strategies")
    cases = cases_of_gang(group)
    assert set(cases) == {"ddp", "fsdp", "fsdp, gathered once", "fsdp by linear"}
    for case in cases.values():
        assert losses_agree(case, cases["ddp"], 1e-4)
        assert len(case.losses) == 10
    for spec in group.variants:
        case = cases[spec.name]
        assert (case.memory_peak_bytes or 0) >= state_bytes(spec, group.run, ranks) > 0
        assert case.values[RANK_MEMORY_BYTES] == 2**30
        assert case.values[LARGEST_MODEL_PARAMETERS] == spec.values[LARGEST_MODEL_PARAMETERS]


@pytest.mark.sampled(2)
def test_a_case_tells_on_which_cores_it_ran_and_what_it_used(tmp_path: Path) -> None:
    variants = (VariantSpec(name="not pinned", pin=False), VariantSpec(name="pinned", pin=True))
    cases = cases_of_gang(a_group(str(tmp_path / "root"), *variants, suite="utilisation"))
    assert {name: case.hardware.pinned for name, case in cases.items()} == {"not pinned": False, "pinned": True}
    assert losses_agree(cases["pinned"], cases["not pinned"], 0.0)
    for case in cases.values():
        assert {"share_forward", "share_idle", "user_cpu_seconds", "cpu_utilisation"} <= case.values.keys()
        assert case.not_measured["GPU utilisation"] == "no GPU"
        assert len(case.blocks) == 6


def test_what_cuts_the_model_computes_the_same(tmp_path: Path) -> None:
    run = a_group(str(tmp_path / "root"), VariantSpec(name="ours"), nodes=2, train={"micro_batch": 4}).run
    found = model_parallel_group("tiny", run, Ranks(2, 1), QUICK)
    found = replaced(found, measures=SUITE.measures)
    cases = cases_of_gang(found, nodes=2)
    assert set(cases) == {"fsdp 2", "tensor 2", "pipeline 2"}
    for case in cases.values():
        assert losses_agree(case, cases["fsdp 2"], 1e-6)
        assert case.parameters == cases["fsdp 2"].parameters
    for spec in found.variants:
        case = cases[spec.name]
        assert (case.memory_peak_bytes or 0) >= state_bytes(spec, found.run, Ranks(2, 1)) > 0
        assert case.not_measured["largest model"] == "the memory of a rank is not known"


def test_a_case_that_is_refused_tells_the_largest_model_all_the_same(tmp_path: Path) -> None:
    ddp = VariantSpec(
        name="ddp", values={LARGEST_MODEL_PARAMETERS: 5e9, "weak": 1.0}, not_measured={"memory": "no GPU"}
    )
    case = unmeasured_case(a_group(str(tmp_path), ddp), ddp, "refused", "needs more")
    assert case.values == {LARGEST_MODEL_PARAMETERS: 5e9}
    assert case.not_measured == {"memory": "no GPU"}
