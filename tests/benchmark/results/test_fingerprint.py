"""What may be compared with what."""

from typing import Any

import pytest

from convoy.benchmark.results.fingerprint import differences, fingerprint
from tests.benchmark.cases import HARDWARE, PROVENANCE, a_case, replaced


def test_another_run_of_the_same_may_be_compared() -> None:
    later = a_case(
        seconds=0.7,
        seed=4,
        group="b2",
        provenance=replaced(PROVENANCE, commit="f" * 16, versions=PROVENANCE.versions | {"convoy": "0.2.0"}),
    )
    assert fingerprint(later) == fingerprint(a_case())
    assert differences(later, a_case()) == []


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"hardware": replaced(HARDWARE, cores=4)}, "hardware.cores: 4 and 2"),
        (
            {"provenance": replaced(PROVENANCE, versions=PROVENANCE.versions | {"torch": "2.14.0"})},
            "versions.torch: 2.14.0 and 2.13.0+cpu",
        ),
        (
            {"provenance": replaced(PROVENANCE, versions=PROVENANCE.versions | {"deepspeed": "0.19.8"})},
            "versions.deepspeed: 0.19.8 and None",
        ),
        ({"provenance": replaced(PROVENANCE, environment={})}, "environment.OMP_NUM_THREADS: None and 1"),
        ({"config": {"train": {"param_dtype": "bf16", "compile": True}}}, "config.train.compile: True and False"),
        ({"model": "gpt-7b"}, "model: gpt-7b and tiny"),
    ],
)
def test_what_differs_is_named(changed: dict[str, Any], told: str) -> None:
    other = a_case(**changed)
    assert fingerprint(other) != fingerprint(a_case())
    assert differences(other, a_case()) == [told]


def test_where_jobs_are_kept_and_what_a_machine_costs_end_no_history() -> None:
    first = a_case(config={"root": "/a", "cluster": {"nodes": 2, "price": None}})
    second = a_case(config={"root": "/b", "cluster": {"nodes": 2, "price": {"usd_per_hour": 3.0}}})
    third = a_case(config={"root": "/a", "cluster": {"nodes": 4, "price": None}})
    assert fingerprint(first) == fingerprint(second) != fingerprint(third)
    assert differences(first, second) == []
    assert differences(first, third) == ["config.cluster.nodes: 2 and 4"]


def test_whatever_parts_two_fingerprints_is_told() -> None:
    whole, broken = a_case(config={"x": 1}), a_case(config={"x": 1.0})
    assert fingerprint(whole) != fingerprint(broken)
    assert differences(whole, broken) == [
        "config: the same values are written in two ways, as by two versions of Convoy"
    ]
