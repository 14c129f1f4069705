"""What memory a variant takes by itself."""

from pathlib import Path
from typing import Any

import pytest
import torch

from convoy.benchmark.groups import VariantSpec
from convoy.benchmark.measure.memory_footprint import Footprint, measure_footprint
from convoy.benchmark.suites.memory import changes_of_all_savers
from convoy.benchmark.variants.baseline import BaselineVariant
from convoy.benchmark.variants.convoy import ConvoyVariant
from convoy.benchmark.variants.variant import Variant
from convoy.training.batches import RankData
from convoy.training.process_groups import connect_ranks
from tests.training.job import GPT, Job, tiny

SHAPE = GPT | {"vocab_size": 2048, "n_layers": 4, "d_model": 96, "max_sequence_length": 64}
"""Large enough for activations and logits to be most of a step."""

VARIANTS: dict[str, dict[str, Any]] = {
    "as configured": {},
    "recomputed": {"train": {"activation_checkpointing": "full"}},
    "loss at once": {"train": {"loss_chunk_tokens": 0}},
}


def footprints(rank: int, assignments: list[Any]) -> dict[str, Footprint | None]:
    """Of each variant, all of them side by side, and of the baseline."""
    assignment = assignments[rank]
    ranks = connect_ranks(assignment)

    def data() -> RankData:
        return RankData(assignment.config, assignment.root, assignment.data_id, assignment.fingerprint, ranks)

    variants: list[Variant] = [
        ConvoyVariant(name, VariantSpec(name=name, changes=changes).config(assignment.config), ranks, data())
        for name, changes in {**VARIANTS, "all savers": changes_of_all_savers(assignment.config)}.items()
    ]
    variants += [BaselineVariant("baseline", assignment.config, ranks, data()), Variant("waiting")]
    for variant in variants:
        variant.step()
    found = {variant.name: measure_footprint(variant, ranks) for variant in variants}
    for variant in variants:
        variant.close()
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Footprint | None]:
    config = tiny(model=SHAPE, data={"sequence_length": 64}, train={"loss_chunk_tokens": 64})
    one, other = Job(str(tmp_path_factory.mktemp("root")), config).on_gang(2, footprints)
    assert one == other
    return dict(one)


def test_what_is_held_is_a_share_of_weights_and_moments(found: dict[str, Footprint | None]) -> None:
    ours, baseline = found["as configured"], found["baseline"]
    whole = baseline.parameters
    assert ours.parameters == pytest.approx(whole / 2, rel=0.01)  # each tensor is cut along its rows
    assert ours.optimizer == pytest.approx(whole, rel=0.01)
    assert baseline.optimizer == pytest.approx(2 * whole, rel=0.01)
    assert baseline.gradients == whole
    assert ours.gradients == 0
    assert ours.peak_bytes == ours.parameters + ours.optimizer + ours.step
    assert found["waiting"] is None


def test_each_saver_saves_by_itself_though_all_are_held_side_by_side(found: dict[str, Footprint | None]) -> None:
    steps = {name: each.step for name, each in found.items() if each is not None}
    assert steps["recomputed"] < 0.75 * steps["as configured"]
    assert steps["loss at once"] > steps["as configured"]
    assert steps["all savers"] < steps["recomputed"]


def test_parts_make_up_the_peak_and_what_no_tensor_used_is_fragmentation() -> None:
    on_gpu = Footprint(parameters=10, optimizer=20, gradients=0, step=60, host=5, reserved=80)
    told = on_gpu.case_values()
    assert told.pop("memory_host_bytes") == 5
    assert told.pop("memory_fragmentation") == pytest.approx(0.25)
    assert sum(told.values()) == on_gpu.peak_bytes == 90
    assert "memory_fragmentation" not in on_gpu._replace(reserved=0).case_values()


def test_the_profiler_sees_what_a_step_takes(tmp_path: Path) -> None:
    """One tensor of a megabyte, and another once that is gone: a megabyte."""
    found = Job(str(tmp_path), tiny()).on_gang(1, _megabytes)
    assert found == [Footprint(parameters=4000, optimizer=0, gradients=0, step=1_000_000, host=0, reserved=0)]


class _Megabytes(Variant):
    def step(self) -> None:
        for _ in range(2):
            kept = torch.empty(250_000)
            del kept

    def held(self) -> dict[str, list[torch.Tensor]]:
        return {"parameters": [torch.empty(1000)]}


def _megabytes(rank: int, assignments: list[Any]) -> Footprint | None:
    ranks = connect_ranks(assignments[rank])
    return measure_footprint(_Megabytes("megabytes"), ranks)
