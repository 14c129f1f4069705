"""Drills as cases of a benchmark."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from convoy.benchmark import drill_worker
from convoy.benchmark.groups import Group, Ranks, VariantSpec
from convoy.benchmark.results import values
from convoy.benchmark.results.files import read_cases
from convoy.benchmark.results.values import BEYOND, DETECTED, RECOVERED
from convoy.config.benchmark import BenchConfig, RecoveryConfig
from convoy.config.errors import ConfigError
from convoy.drills.result import DrillResult, TrialResult, result_of
from convoy.launch.benchmark import split
from convoy.launch.benchmark.groups import drill_environment, run_groups
from convoy.launch.benchmark.split import describe_share, shares_of
from tests.benchmark.benches import a_group, groups_of
from tests.benchmark.cases import replaced

WHEN = datetime(2026, 11, 23, tzinfo=UTC)

GOOD = TrialResult(
    ok=True, detected_s=0.2, recovered_s=5.0, beyond_s=6.0, steps_recomputed=3, samples_lost=0, samples_repeated=0,
    final_state_equal=True, target_detected_s=0.5, target_recovered_s=8.0,
)  # fmt: skip


def drills(root: Path, *names: str, **asked: int) -> Group:
    group = a_group(str(root), *(VariantSpec(name=name) for name in names), suite="recovery")
    return replaced(group, baseline=None, recovery=RecoveryConfig(drills=names, **asked))


def test_one_group_for_the_whole_benchmark_whose_cases_are_drills() -> None:
    recovery = RecoveryConfig(drills=("node-kill", "spot-notice", "node-kill"))
    config = BenchConfig(suites=("recovery",), models=("tiny", "gpt2-124m"), recovery=recovery)
    (group,) = groups_of(config, Ranks(2, 1))
    assert [spec.name for spec in group.variants] == ["node-kill", "spot-notice"]
    assert group.recovery == recovery


def test_a_drill_that_there_is_not_is_refused_before_anything_starts() -> None:
    config = BenchConfig(suites=("recovery",), recovery=RecoveryConfig(drills=("node-kil",)))
    with pytest.raises(ConfigError, match=r"recovery\.drills = node-kil: no such drill; did you mean node-kill"):
        groups_of(config, Ranks(2, 1))


def test_memory_for_a_large_model_is_not_asked_of_drills(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "host_memory_mib", lambda: 1024)
    run = {"cluster": {"nodes": 1}}
    config = BenchConfig(suites=("recovery",), models=("gpt-175b",), run=run, recovery=RecoveryConfig(nodes=2))
    (share,) = shares_of(config)
    assert list(describe_share(share)) == ["recovery: gangs of 2 nodes on one host: node-kill; spot-notice"]


@pytest.mark.processes
def test_a_case_has_every_trial(tmp_path: Path) -> None:
    group = drills(tmp_path, "node-kill", nodes=2, trials=3)
    bad = replaced(
        GOOD, ok=False, reason="16 samples lost", recovered_s=None, samples_lost=16, final_state_equal=False,
        target_recovered_s=9.0,
    )  # fmt: skip
    result = result_of("node-kill", [GOOD, bad, GOOD])
    case = drill_worker.case_of(group, group.recovery or RecoveryConfig(), result, WHEN)
    assert (case.status, case.reason, case.key) == ("measured", "16 samples lost", "recovery-tiny-node-kill")
    assert case.samples == {DETECTED: (0.2,) * 3, RECOVERED: (5.0, 5.0), BEYOND: (6.0,) * 3}
    assert case.values == {
        values.TRIALS: 3, values.RECOVERED_TRIALS: 2, values.STEPS_RECOMPUTED: 9, values.SAMPLES_LOST: 16,
        values.SAMPLES_REPEATED: 0, values.STATES_COMPARED: 3, values.STATES_EQUAL: 2,
        values.TARGET_DETECTED_SECONDS: 0.5, values.TARGET_RECOVERED_SECONDS: 9.0,
    }  # fmt: skip
    assert (case.hardware.nodes, case.hardware.ranks) == (1, 2)
    assert case.config["cluster"]["nodes"] == 2
    assert case.config["campaign"]["replacement_seconds"] == 600
    assert "root" not in case.config


@pytest.mark.processes
def test_what_this_machine_cannot_run_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    group = drills(tmp_path, "partition")
    result = result_of("partition", [TrialResult(ok=False, not_run="root, for network namespaces")])
    case = drill_worker.case_of(group, group.recovery or RecoveryConfig(), result, WHEN)
    assert (case.status, case.reason) == ("refused", "this machine lacks root, for network namespaces")
    assert (case.samples, case.values) == ({}, {})


@pytest.mark.processes
def test_each_drill_is_written_as_soon_as_it_has_ended(tmp_path: Path) -> None:
    def run(name: str) -> DrillResult:
        if name == "spot-notice":
            assert [case.name for case in read_cases(tmp_path / "cases")] == ["node-kill"]
        return result_of(name, [GOOD])

    drill_worker.main(drills(tmp_path, "node-kill", "spot-notice"), tmp_path / "cases", run)
    assert [case.name for case in read_cases(tmp_path / "cases")] == ["node-kill", "spot-notice"]


def test_gangs_of_more_workers_than_there_are_gpus_train_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    group = drills(tmp_path, "node-kill", nodes=3)
    assert drill_environment(group, gpus=1)["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in drill_environment(group, gpus=4)
    assert "CUDA_VISIBLE_DEVICES" not in drill_environment(group, gpus=0)


def test_another_node_of_the_flow_runs_none(tmp_path: Path) -> None:
    (ran,) = run_groups([drills(tmp_path, "node-kill")], lambda *_: pytest.fail("no gang"), print, drills=False)
    assert (ran.cases, ran.failure) == ((), "")


def test_drills_that_end_badly_fail_their_cases(tmp_path: Path) -> None:
    (ran,) = run_groups([drills(tmp_path, "no-such-drill")], lambda *_: pytest.fail("no gang"), print)
    assert "the drills ended with exit code 1" in ran.failure
    assert "drill no-such-drill: no such drill" in ran.failure
    assert [(case.name, case.status) for case in ran.cases] == [("no-such-drill", "failed")]
