"""What is said of a benchmark's cases before they run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from convoy.benchmark.groups import Group, Kind, VariantSpec
from convoy.benchmark.measure.predictions import _in_catalog, predict_cases
from convoy.benchmark.results.case import CasePrediction
from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.model import TransformerConfig
from convoy.gang.task import RankPosition
from convoy.model.counts import checkpoint_bytes
from convoy.training.process_groups import Ranks
from tests.benchmark.benches import a_group
from tests.benchmark.cases import MEASURED, replaced

ON_CPUS = cast("Ranks", SimpleNamespace(device=torch.device("cpu")))

PLACE = RankPosition(rank=0, local_rank=0, node=0, nodes=2, nproc_per_node=1, host_rank=0, host_ranks=2, threads=1)
"""Two ranks, a node each."""


def one(
    spec: VariantSpec, machine: MeasuredMachine | None = MEASURED, group: dict[str, Any] | None = None, **sections: Any
) -> CasePrediction:
    """Of a case by itself. group: what is other of its group."""
    found: Group = a_group("/nowhere", spec, nodes=2, **sections).model_copy(update=group or {})
    machines = {} if machine is None else {"fp32": machine, "bf16": machine}
    return predict_cases(found, PLACE, machines, on_gpus=False)[spec.name]


def with_cluster(changes: dict[str, Any]) -> Group:
    """Of one case, on such machines."""
    group = a_group("/nowhere", VariantSpec(name="ours"), nodes=2)
    cluster = group.run.cluster.model_copy(update=changes)
    return replaced(group, run=replaced(group.run, cluster=cluster))


def test_a_step_and_its_tensors_are_predicted_from_what_was_measured() -> None:
    found = one(VariantSpec(name="ours"))
    assert found.step_seconds > 0 < found.peak_bytes
    assert (found.nodes, found.ranks_per_node, found.machine, found.saved_bytes) == (2, 1, MEASURED, None)
    assert not found.why_no_step
    fast = replaced(MEASURED, matmul_flops=2 * MEASURED.matmul_flops)
    faster = one(VariantSpec(name="ours"), fast)
    assert (faster.step_seconds or 0) < found.step_seconds
    assert faster.peak_bytes == found.peak_bytes


def test_tensors_are_predicted_of_a_machine_of_which_nothing_is_known() -> None:
    found = one(VariantSpec(name="ours"), None)
    assert found.step_seconds is None
    assert "cpu" in found.why_no_step
    assert found.peak_bytes == one(VariantSpec(name="ours")).peak_bytes


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (VariantSpec(name="AdamW", changes={"optimizer": {"fused": False}}), "AdamW that is not fused"),
        (VariantSpec(name="none ahead", changes={"train": {"prefetch_steps": 0}}), "batches that are not made ahead"),
        (VariantSpec(name="offloaded", changes={"parallel": {"cpu_offload": True}}), "cpu_offload: its time is not"),
        (VariantSpec(name="alone", ranks=1), "1 of the 2 ranks that measured the machine at once"),
        (VariantSpec(name="free", pin=False), "ranks on other cores"),
        (VariantSpec(name="saving", kind="saving"), "a save is in each block"),
    ],
)
def test_what_the_planner_has_no_formula_of_is_not_predicted(spec: VariantSpec, why: str) -> None:
    found = one(spec)
    assert found.step_seconds is None
    assert why in found.why_no_step


@pytest.mark.parametrize("kind", ["baseline", "torch DDP"])
def test_nothing_is_predicted_of_others_code(kind: Kind) -> None:
    found = one(VariantSpec(name="other", kind=kind))
    assert (found.step_seconds, found.peak_bytes) == (None, None)
    assert found.why_no_step
    assert found.why_no_peak


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        ({"backend": "batch", "instance_type": "m7i.2xlarge"}, "m7i.2xlarge: not in the catalog"),
        ({"backend": "batch", "instance_type": "g5.xlarge", "nproc_per_node": 2}, "a g5.xlarge has 1 GPUs"),
        ({"backend": "batch", "instance_type": "p4d.24xlarge"}, "A100 is configured, and its ranks compute on CPUs"),
    ],
)
def test_machines_that_are_not_what_is_configured_end_nothing(cluster: dict[str, Any], why: str) -> None:
    group = with_cluster(cluster)
    assert not _in_catalog(group.run, ON_CPUS)
    found = predict_cases(group, PLACE, {}, on_gpus=False)["ours"]
    assert found.step_seconds is None
    assert why in found.why_no_step


def test_a_local_case_is_one_of_this_host_whatever_type_it_names() -> None:
    group = with_cluster({"instance_type": "p4d.24xlarge"})
    assert not _in_catalog(group.run, ON_CPUS)
    found = predict_cases(group, PLACE, {"fp32": MEASURED, "bf16": MEASURED}, on_gpus=False)["ours"]
    assert found.step_seconds == one(VariantSpec(name="ours")).step_seconds


def test_not_even_a_bug_of_the_planner_ends_a_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr("convoy.benchmark.measure.predictions.step_time", broken)
    monkeypatch.setattr("convoy.benchmark.measure.predictions.peak_bytes_by_part", broken)
    found = one(VariantSpec(name="ours"))
    assert (found.why_no_step, found.why_no_peak) == ("ZeroDivisionError: division by zero",) * 2


def test_compiled_blocks_have_a_time_and_no_peak() -> None:
    found = one(VariantSpec(name="compiled", changes={"train": {"compile": True}}))
    assert found.step_seconds is not None
    assert "compiled" in found.why_no_peak


def test_of_several_trainings_at_once_one_is_predicted() -> None:
    found = one(VariantSpec(name="jobs", ranks=1, at_once=True))
    assert (found.nodes, found.ranks_per_node) == (1, 1)
    assert (found.step_seconds or 0) > 0


def test_a_case_that_saves_tells_how_much(tmp_path: Path) -> None:
    group = a_group(str(tmp_path), VariantSpec(name="saves", kind="saving"), nodes=2)
    model = group.run.model
    assert isinstance(model, TransformerConfig)
    assert predict_cases(group, PLACE, {}, on_gpus=False)["saves"].saved_bytes == checkpoint_bytes(model)
