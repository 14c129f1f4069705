"""The check before the first step, with real ranks: who is made slow is named, and nobody else."""

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist

from convoy.job.events.log import EventWriter
from convoy.job.events.registry import UNFIT, NodeChecked
from convoy.training.measure import health_check
from convoy.training.measure.health_check import NodeUnfitError, check_node
from convoy.training.process_groups import Ranks, is_lost_peer
from convoy.training.workers.train import _report_failure
from tests.campaign import times
from tests.ranks import in_a_group
from tests.training.job import Job, place, tiny

pytestmark = pytest.mark.campaign

SECONDS = 0.05


class Told:
    """An event log in memory."""

    def __init__(self) -> None:
        self.events: list[NodeChecked] = []

    def append(self, event: NodeChecked) -> None:
        self.events.append(event)


def _slow_products(times_as_slow: int) -> None:
    real = torch.mm

    def slow(a: torch.Tensor, b: torch.Tensor, **named: Any) -> torch.Tensor:
        for _ in range(times_as_slow - 1):
            real(a, b)
        return real(a, b, **named)

    torch.mm = slow


def _slow_links(seconds: float) -> None:
    real = health_check._exchange_with

    def slow(ranks: Ranks, out: torch.Tensor, into: torch.Tensor, other: int) -> None:
        time.sleep(seconds)
        real(ranks, out, into, other)

    health_check._exchange_with = slow


def _check(rank: int, world: int, nodes: int, bad: int | None, fault: str) -> tuple[str, NodeChecked | None]:
    """How it ended on this rank, and what it told."""
    group, told = cast(dist.ProcessGroup, dist.group.WORLD), Told()
    ranks = Ranks(place(rank, world, world // nodes), torch.device("cpu"), cast(Any, None), group, group)
    if rank == bad:
        _slow_products(8) if fault == "products" else _slow_links(0.1)
    before = torch.random.get_rng_state()
    try:
        check_node(ranks, "bf16", SECONDS, cast(EventWriter, told))
        how = "fit"
    except NodeUnfitError as error:
        how = f"unfit: {error}"
    except RuntimeError as error:
        how = "lost a peer" if is_lost_peer(error) else repr(error)
    assert torch.equal(before, torch.random.get_rng_state())
    return how, told.events[0] if told.events else None


def checked(world: int = 3, nodes: int = 3, bad: int | None = None, fault: str = "") -> list[Any]:
    return in_a_group(world, _check, world, nodes, bad, fault)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("bad", [0, 2])
@pytest.mark.parametrize("fault", ["products", "links"])
def test_who_is_far_slower_is_named_and_the_others_only_lose_a_peer(fault: str, bad: int) -> None:
    found = checked(bad=bad, fault=fault)
    how = [told for told, _ in found]
    assert how[bad].startswith("unfit: a matrix product takes" if fault == "products" else "unfit: an exchange with")
    assert [told for rank, told in enumerate(how) if rank != bad] == ["lost a peer"] * 2
    assert [bool(event.problem) for _, event in found] == [rank == bad for rank in range(3)]


def test_ranks_that_are_alike_pass_and_tell_what_they_can_do() -> None:
    for how, event in checked():
        assert how == "fit"
        assert 1e-4 < event.matmul_tflops < 100
        assert event.link_bytes_per_second > 1e5
        assert event.problem == ""
        assert 0 < event.seconds < 30


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("world", "nodes"), [(4, 1), (4, 2), (6, 3), (5, 5)])
def test_gangs_of_other_shapes_pass(world: int, nodes: int) -> None:
    assert [how for how, _ in checked(world, nodes)] == ["fit"] * world


def test_of_two_ranks_links_are_not_measured_and_of_one_nothing() -> None:
    (_, event), _ = checked(world=2, nodes=2)
    assert event.link_bytes_per_second is None
    assert checked(world=1, nodes=1) == [("fit", None)]


def _burn() -> None:
    while True:
        sum(range(10_000))


def test_ranks_that_share_cores_with_others_are_never_named() -> None:
    """More busy processes than cores, beside three ranks."""
    busy = [multiprocessing.Process(target=_burn, daemon=True) for _ in range(1 + (os.cpu_count() or 1))]
    try:
        for process in busy:
            process.start()
        for _ in range(times(3)):
            assert [how for how, _ in checked()] == ["fit"] * 3
    finally:
        for process in busy:
            process.kill()


def test_an_unfit_machine_has_an_exit_code_of_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    reason = tmp_path / "reason"
    assert (
        _report_failure(NodeUnfitError("a matrix product takes 8.1 times as long as on the other ranks"), reason)
        == UNFIT
    )
    assert reason.read_text() == "a matrix product takes 8.1 times as long as on the other ranks"
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("asked", [True, False])
def test_it_is_made_where_the_agent_asks_for_it_and_changes_nothing(asked: bool, tmp_path: Path) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 2}))
    real = job.assignment

    def assignment(*args: Any) -> Any:
        return real(*args).model_copy(update={"check_node": asked})

    job.assignment = assignment  # type: ignore[method-assign]
    assert job.run(2) == [False, False]
    assert sorted(e.rank or 0 for e in job.events(NodeChecked)) == ([0, 1] if asked else [])
