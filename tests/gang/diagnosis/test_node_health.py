"""Who is unfit, by what all ranks measured."""

import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.gang.diagnosis import node_health
from convoy.gang.diagnosis.node_health import (
    LINK_FACTOR,
    MATMUL_FACTOR,
    ROUNDS,
    RankMeasurement,
    partner,
    query_gpu_problem,
    unfit_ranks,
)
from tests.campaign import examples
from tests.doctor.test_machine import program

pytestmark = pytest.mark.campaign

GOOD = RankMeasurement(device="cpu A", kind="cpu", matmul_seconds=0.004, link_seconds=0.002)


def gang(size: int, seed: int = 0, noise: float = 0.1) -> list[RankMeasurement]:
    """Ranks that differ by chance."""
    rng = random.Random(seed)
    return [
        replace(
            GOOD,
            matmul_seconds=GOOD.matmul_seconds * (1 + rng.uniform(0, noise)),
            link_seconds=GOOD.link_seconds * (1 + rng.uniform(0, 3 * noise)),
        )
        for _ in range(size)
    ]


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_rank_that_computes_far_slower_is_unfit(size: int) -> None:
    measured = gang(size)
    measured[1] = replace(measured[1], matmul_seconds=0.016)
    (reason,) = unfit_ranks(measured).values()
    assert list(unfit_ranks(measured)) == [1]
    assert reason.startswith("a matrix product takes 3.")
    assert reason.endswith(" times as long as on the other ranks")


def test_a_gpu_that_is_throttled_is_unfit() -> None:
    measured = [replace(rank, kind="cuda") for rank in gang(8, noise=0.03)]
    measured[5] = replace(measured[5], matmul_seconds=0.0056)
    assert list(unfit_ranks(measured)) == [5]
    assert unfit_ranks([replace(rank, kind="cpu") for rank in measured]) == {}


def test_a_rank_whose_links_are_all_slow_is_unfit() -> None:
    measured = gang(4)
    measured[2] = replace(measured[2], link_seconds=0.2)
    ((rank, reason),) = unfit_ranks(measured).items()
    assert rank == 2
    assert "an exchange with either neighbour takes" in reason


def test_a_slow_link_of_milliseconds_is_chance() -> None:
    measured = gang(4)
    measured[2] = replace(measured[2], link_seconds=0.0119)
    assert measured[2].link_seconds > LINK_FACTOR * max(m.link_seconds for m in gang(4)) * 0.9
    assert unfit_ranks(measured) == {}


def test_other_devices_are_not_compared_and_what_was_not_measured_is_nothing() -> None:
    slower = replace(GOOD, device="cpu B", matmul_seconds=0.02)
    assert unfit_ranks([GOOD, GOOD, slower, slower]) == {}
    assert unfit_ranks([GOOD, GOOD, slower]) == {}
    assert unfit_ranks([replace(GOOD, link_seconds=0.0)] * 3) == {}
    assert unfit_ranks([GOOD]) == {}


def test_all_that_are_slow_are_named_and_nobody_for_being_faster_than_most() -> None:
    slow = replace(GOOD, matmul_seconds=0.02)
    assert list(unfit_ranks([GOOD, GOOD, GOOD, slow, slow])) == [3, 4]
    assert list(unfit_ranks([GOOD, GOOD, slow, slow])) == [2, 3]
    assert unfit_ranks([GOOD, slow, slow]) == {}


@examples(300)
@given(st.integers(2, 12), st.floats(0.0, 1.0), st.integers(0, 2**32))
def test_noise_alone_never_fails_a_rank(size: int, noise: float, seed: int) -> None:
    """Ranks up to twice as slow as others, as when three share two cores, and exchanges up to four times."""
    assert unfit_ranks(gang(size, seed, noise)) == {}


@examples(300)
@given(st.integers(2, 12), st.lists(st.floats(1e-4, 1.0), min_size=12, max_size=12))
def test_nobody_is_unfit_who_is_not_slower_than_the_factor_says(size: int, times: list[float]) -> None:
    measured = [replace(GOOD, matmul_seconds=seconds) for seconds in times[:size]]
    for rank in unfit_ranks(measured):
        others = sorted(seconds for i, seconds in enumerate(times[:size]) if i != rank)
        assert times[rank] > MATMUL_FACTOR["cpu"] * others[(len(others) - 1) // 2]


@examples(100)
@given(st.integers(3, 12), st.floats(0.0, 0.2), st.floats(4.0, 100.0), st.integers(0, 2**32), st.data())
def test_one_that_is_clearly_out_is_always_found(
    size: int, noise: float, slower: float, seed: int, data: st.DataObject
) -> None:
    bad = data.draw(st.integers(0, size - 1))
    measured = gang(size, seed, noise)
    measured[bad] = replace(measured[bad], matmul_seconds=measured[bad].matmul_seconds * slower)
    assert list(unfit_ranks(measured)) == [bad]


@given(st.integers(3, 40))
def test_each_pair_of_neighbours_in_a_ring_meets_once(size: int) -> None:
    met = []
    for round_ in range(ROUNDS):
        pairs = {position: partner(position, size, round_) for position in range(size)}
        for position, other in pairs.items():
            if other is not None:
                assert pairs[other] == position
                met.append(tuple(sorted((position, other))))
    assert sorted(met) == sorted(2 * [tuple(sorted((i, (i + 1) % size))) for i in range(size)])


@examples(100)
@given(st.integers(3, 12), st.data())
def test_the_better_of_two_exchanges_tells_whose_link_is_bad(size: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, size - 1))
    best = [1.0] * size
    for round_ in range(ROUNDS):
        for position in range(size):
            other = partner(position, size, round_)
            if other is not None:
                best[position] = min(best[position], 0.5 if bad in (position, other) else 0.002)
    assert list(unfit_ranks([replace(GOOD, link_seconds=seconds) for seconds in best])) == [bad]


LOST = "Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.  Reboot the system to recover this GPU"


FINE = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)"
UNMAPPABLE = "GPU 00000000:2C:00.0: an error in its memory could not be mapped out"


def test_without_a_driver_nothing_is_wrong(tmp_path: Path) -> None:
    assert query_gpu_problem({"PATH": str(tmp_path)}) == ""


@pytest.mark.parametrize("listing", [FINE, f"GPU 0: fine\n  {LOST}  \n{LOST}"], ids=["listed", "lost"])
@pytest.mark.parametrize(
    ("remapped", "problem"),
    [
        *((f"00000000:1B:00.0, {failed}", "") for failed in ("0", "No", "[N/A]")),
        *((f"00000000:1B:00.0, 0\n00000000:2C:00.0, {failed}", UNMAPPABLE) for failed in ("1", "Yes")),
        ("No devices were found", ""),
        ("", ""),
    ],
)
def test_a_gpu_that_is_lost_or_has_memory_that_cannot_be_mended_is_named_in_one_line(
    listing: str, remapped: str, problem: str, tmp_path: Path
) -> None:
    body = f"case \"$1\" in\n-L) echo '{listing}' >&2;;\n--query-remapped-rows*) echo '{remapped}';;\nesac"
    assert query_gpu_problem(program(tmp_path / "bin", "nvidia-smi", body)) == (LOST if LOST in listing else problem)


def test_a_driver_that_does_not_answer_is_not_blamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_health, "DRIVER_SECONDS", 0.3)
    environ = program(tmp_path / "bin", "nvidia-smi", "exec sleep 60")
    began = time.monotonic()
    assert query_gpu_problem(environ) == ""
    assert time.monotonic() - began < 30
