"""Profiles of the steps of frameworks, beside cases whose truth is known."""

from typing import Any

import pytest

from convoy.benchmark.analysis.frameworks import framework_figures
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.values import COMPILE_SECONDS, INDEPENDENT
from tests.benchmark.analysis.test_sync import with_parts
from tests.benchmark.cases import HARDWARE, a_case, replaced


def four() -> list[Case]:
    """Ours and JAX, together and alone; together JAX loses 0.15 s of 0.45 s, and ours 0.05 s of 0.25 s."""
    shared: dict[str, Any] = {"suite": "frameworks", "group": "jax-tiny", "n": 20}
    apart: dict[str, Any] = {"hardware": replaced(HARDWARE, jobs=2), "values": {INDEPENDENT: 1.0}, **shared}
    near = (8.3 + 8.3e-6, 8.1, 7.9)
    ours = a_case("Convoy", 0.25, seed=1, baseline=None, **shared)
    ours_alone = a_case("Convoy, alone", 0.2, seed=1, baseline="Convoy", **apart)
    jax = a_case("JAX", 0.45, seed=1, baseline="Convoy", values={COMPILE_SECONDS: 12.0}, losses=near, **shared)
    jax_alone = a_case("JAX, alone", 0.3, seed=1, baseline="Convoy, alone", **apart)
    return [
        with_parts(ours, data=0.0, forward=0.1, exchange=0.01, backward=0.12, optimizer=0.02),
        with_parts(ours_alone, data=0.0, forward=0.08, exchange=0.0, backward=0.1, optimizer=0.02),
        with_parts(jax, data=0.001, forward=0.1, backward=0.2, sync=0.15, optimizer=0.01),
        with_parts(jax_alone, data=0.001, forward=0.1, backward=0.19, sync=0.0, optimizer=0.01),
    ]


def test_a_part_of_its_own_is_taken_and_ours_is_what_is_longer_than_alone() -> None:
    ours, jax = framework_figures(four())
    assert (ours.case, jax.case) == ("Convoy", "JAX")
    assert ours.parts == pytest.approx({"forward": 0.08, "backward": 0.1, "sync": 0.05, "update": 0.02})
    assert jax.parts == {"forward": 0.1, "backward": 0.2, "sync": 0.15, "update": 0.01}


def test_the_share_is_of_pairs_of_blocks_with_the_same_framework_alone() -> None:
    ours, jax = framework_figures(four())
    assert ours.share is not None
    assert ours.share.estimate == pytest.approx(0.2)
    assert jax.share is not None
    assert jax.share.estimate == pytest.approx(1 / 3)
    assert jax.share.low <= jax.share.estimate <= jax.share.high


def test_losses_and_compilation_are_those_of_the_case() -> None:
    ours, jax = framework_figures(four())
    assert (ours.loss_difference, ours.compile_seconds) == (None, None)
    assert jax.loss_difference == pytest.approx(1e-6)
    assert jax.compile_seconds == 12.0


def test_without_the_ranks_alone_the_share_is_not_known() -> None:
    (jax,) = framework_figures([four()[2]])
    assert (jax.share, jax.why, jax.loss_difference) == (None, "its ranks alone are not among the results", None)


def test_refused_cases_have_no_figures() -> None:
    assert framework_figures([replaced(case, status="refused", blocks=()) for case in four()]) == ()
