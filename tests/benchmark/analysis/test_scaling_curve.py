"""The predicted curve over nodes: the planner's own figures, with measured points next to them."""

from typing import Any

import pytest

from convoy.benchmark.fold import fold_cases
from convoy.benchmark.page import benchmark_page
from convoy.benchmark.plan import run_of
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case, CasePrediction
from convoy.config.benchmark import BenchConfig
from convoy.display.markdown import to_markdown
from convoy.planner.plan import plan
from tests.benchmark.cases import GPUS, MEASURED, a_case, replaced, scaling

BATCH = 64


def on_p4d(model: str = "gpt-7b", **prediction: Any) -> list[Case]:
    """Half and all of 32 ranks of 4 p4d, weak, with 2 sequences of 2,048 tokens a rank; a step takes 1.5 s."""
    cluster = {"backend": "kubernetes", "instance_type": "p4d.24xlarge", "nodes": 4}
    train = {"param_dtype": "bf16", "micro_batch": 2, "activation_checkpointing": "full", "compile": True}
    cases = []
    for ranks in (16, 32):
        batch = BATCH * ranks // 32
        run = {"root": "s3://b/x", "cluster": cluster, "train": {**train, "global_batch": batch}}
        config = run_of(BenchConfig(models=(model,), run={**run, "data": {"sequence_length": 2048}}), model)
        told = CasePrediction(calibration="", nodes=ranks // 8, ranks_per_node=8, step_seconds=1.0, **prediction)
        shared: dict[str, Any] = {"suite": "scaling", "group": "g", "baseline": None, "model": model}
        hardware = replaced(GPUS, ranks=ranks, nodes=ranks // 8)
        kind = {} if ranks == 16 else {values.WEAK: 1.0}
        cases.append(
            a_case(
                f"{ranks} ranks", 1.5, hardware=hardware, config=config.model_dump(mode="json"), predicted=told,
                values=kind, tokens_per_step=batch * 2048, **shared,
            )
        )  # fmt: skip
    return cases


def test_a_point_is_what_the_plan_of_as_many_nodes_says() -> None:
    cases = on_p4d()
    [curve] = fold_cases(cases).scaling_predicted
    assert [point.nodes for point in curve.points] == [1, 2, 4, 8, 16, 32, 64]
    assert [point.ranks for point in curve.points][-1] == 512
    for nodes in (4, 16):
        tree = {"models": ("gpt-7b",), "run": {**cases[1].config, "model": {}}}
        run = run_of(BenchConfig(**tree), "gpt-7b")
        update = {
            "cluster": run.cluster.model_copy(update={"nodes": nodes}),
            "train": run.train.model_copy(update={"global_batch": 16 * nodes}),
        }
        step = plan(run.model_copy(update=update)).step
        assert step is not None
        (point,) = (each for each in curve.points if each.nodes == nodes)
        assert point.tokens_per_second == pytest.approx(16 * nodes * 2048 / step.seconds)


def test_measured_points_stand_next_to_it_with_the_error() -> None:
    [curve] = fold_cases(on_p4d()).scaling_predicted
    measured = {point.nodes: point for point in curve.points if point.measured is not None}
    assert set(measured) == {2, 4}
    assert measured[4].measured is not None
    assert measured[4].measured.estimate == pytest.approx(64 * 2048 / 1.5, rel=0.02)
    assert measured[4].error == pytest.approx(measured[4].tokens_per_second / (64 * 2048 / 1.5) - 1, rel=0.1)
    page = to_markdown(benchmark_page(on_p4d()))
    assert "Weak scaling over 1 to 64 nodes (predicted)" in page
    assert page.count("not measured") >= 5


def resized(case: Case, ranks: int, batch: int) -> Case:
    """On so many ranks, with so many sequences."""
    train = {**case.config["train"], "global_batch": batch}
    return replaced(
        case,
        name=f"{ranks} ranks of {batch}",
        hardware=replaced(case.hardware, ranks=ranks, nodes=-(-ranks // 8)),
        config={**case.config, "train": train},
        tokens_per_step=batch * 2048,
        values={values.WEAK: 1.0},
    )


def test_measured_parts_of_a_node_and_other_numbers_of_nodes_have_points_too() -> None:
    cases = on_p4d("llama-1b")
    [curve] = fold_cases([*cases, resized(cases[0], 4, 8), resized(cases[0], 24, 48)]).scaling_predicted
    assert [(point.nodes, point.ranks) for point in curve.points][:5] == [(1, 4), (1, 8), (2, 16), (3, 24), (4, 32)]
    assert [point.ranks for point in curve.points if point.measured is not None] == [4, 16, 24, 32]
    assert curve.points[0].efficiency == 1.0


def test_a_case_with_other_tokens_for_each_rank_is_no_point() -> None:
    cases = on_p4d()
    [curve] = fold_cases([cases[1], resized(cases[0], 16, 16)]).scaling_predicted
    assert [point.ranks for point in curve.points if point.measured is not None] == [32]


def test_where_only_the_whole_gang_has_room_it_is_the_measured_point() -> None:
    [curve] = fold_cases(on_p4d()[:1]).scaling_predicted
    assert [point.nodes for point in curve.points if point.measured is not None] == [2]
    alone = resized(on_p4d()[0], 1, 2)
    assert fold_cases([replaced(alone, values={})]).scaling_predicted == ()


def test_nodes_without_room_are_named() -> None:
    [curve] = fold_cases(on_p4d("custom-30b")).scaling_predicted
    assert any(line.startswith("1: no room") for line in curve.lacking)
    assert curve.points
    assert curve.points[0].efficiency == 1.0


def test_a_machine_that_its_ranks_measured_has_no_curve() -> None:
    [curve] = fold_cases(on_p4d(machine=MEASURED)).scaling_predicted
    assert not curve.points
    assert curve.why.endswith("says nothing of more hosts")
    assert [curve.why for curve in fold_cases(scaling()).scaling_predicted] == [
        "the results are of a version that predicted nothing"
    ]


def test_each_kind_of_machine_has_a_curve_with_its_own_points() -> None:
    """The same model on as many ranks of p4d and of p5, which are twice as fast."""
    p4d = on_p4d()
    p5 = [
        replaced(
            case,
            group="on p5",
            hardware=replaced(case.hardware, instance_type="p5.48xlarge"),
            config={**case.config, "cluster": {**case.config["cluster"], "instance_type": "p5.48xlarge"}},
            blocks=tuple(replaced(block, seconds=block.seconds / 2) for block in case.blocks),
        )
        for case in p4d
    ]
    curves = {curve.machine: curve for curve in fold_cases([*p4d, *p5]).scaling_predicted}
    rates = {}
    for machine, curve in curves.items():
        points = {point.ranks: point for point in curve.points if point.measured is not None}
        assert set(points) == {16, 32}
        assert points[32].measured is not None
        rates[machine] = points[32].measured.estimate
    assert rates["p5.48xlarge"] == pytest.approx(2 * rates["p4d.24xlarge"])
