"""The per-step exchange."""

import itertools
from pathlib import Path
from typing import get_args

import pytest
import torch.distributed as dist

from convoy.checkpoint.save.queue import SaveStatus
from convoy.training.step import Agreement, Exchange, StopReason, Vote
from tests.ranks import on_ranks

Offer = tuple[int, Vote | None] | tuple[int, Vote | None, SaveStatus]
NOTHING = SaveStatus()


def exchanged(offers: list[list[Offer]], folder: Path) -> list[list[Agreement]]:
    """What each rank is told; offers[step][rank]."""
    return on_ranks(len(offers[0]), _exchange, offers, str(folder / "store"))


def _exchange(rank: int, offers: list[list[Offer]], path: str) -> list[Agreement]:
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=len(offers[0]))
    group = dist.group.WORLD
    assert group is not None
    exchange, told = Exchange(group), []
    for offer in offers:
        exchange.begin(*(*offer[rank], NOTHING)[:3])
        told.append(exchange.finish())
    return told


def test_tokens_are_summed_and_each_step_is_exchanged_anew(tmp_path: Path) -> None:
    told = exchanged([[(3, None), (4, None), (0, None)], [(1, None), (1, None), (1, None)]], tmp_path)

    assert told == [[Agreement(7, None, NOTHING), Agreement(3, None, NOTHING)]] * 3


def test_one_rank_is_enough_to_stop_all(tmp_path: Path) -> None:
    told = exchanged([[(1, None), (1, None)], [(1, None), (1, "requested")]], tmp_path)

    assert told == [[Agreement(2, None, NOTHING), Agreement(2, "requested", NOTHING)]] * 2


def test_all_name_the_same_reason_when_there_are_several(tmp_path: Path) -> None:
    reasons = get_args(StopReason)
    pairs = list(itertools.product(reasons, reasons))

    told = exchanged([[(0, one), (0, other)] for one, other in pairs], tmp_path)

    assert told[0] == told[1]
    assert all(agreed.stop in pair for agreed, pair in zip(told[0], pairs, strict=True))


@pytest.mark.parametrize("other", [r for r in get_args(Vote) if r != "preempted_unsaved"])
def test_where_there_is_no_time_to_save_nothing_else_counts(other: Vote, tmp_path: Path) -> None:
    told = exchanged([[(1, other), (1, "preempted_unsaved")]], tmp_path)

    assert [agreed.stop for agreed in told[0] + told[1]] == ["preempted_unsaved"] * 2


def test_one_rank_is_enough_for_all_to_save_and_nobody_stops_for_it(tmp_path: Path) -> None:
    told = exchanged([[(1, None), (1, None)], [(1, "save"), (1, None)], [(1, None), (1, None)]], tmp_path)

    nothing = Agreement(2, None, NOTHING)
    assert told == [[nothing, Agreement(2, None, NOTHING, save=True), nothing]] * 2


def test_a_save_and_an_end_are_both_told(tmp_path: Path) -> None:
    told = exchanged([[(1, "save"), (1, "max_hours")]], tmp_path)

    assert told == [[Agreement(2, "max_hours", NOTHING, save=True)]] * 2


def test_what_each_rank_knows_of_the_save_under_way_is_summed(tmp_path: Path) -> None:
    told = exchanged(
        [
            [(1, None, SaveStatus(committed=1)), (1, None, NOTHING)],
            [(1, "requested", SaveStatus(failed=1)), (1, None, SaveStatus(failed=1, superseded=1))],
        ],
        tmp_path,
    )

    stopped = Agreement(2, "requested", SaveStatus(failed=2, superseded=1))
    assert told == [[Agreement(2, None, SaveStatus(committed=1)), stopped]] * 2


def test_what_each_rank_is_busy_with_is_summed_by_tier(tmp_path: Path) -> None:
    one = SaveStatus(reading_back=(1, 0), copying=(0, 1))
    other = SaveStatus(committed=1, reading_back=(1, 0), copying=(0, 0))

    told = exchanged([[(1, None, one), (1, None, other)]], tmp_path)

    assert told == [[Agreement(2, None, SaveStatus(committed=1, reading_back=(2, 0), copying=(0, 1)))]] * 2


def test_finishing_what_was_not_begun_is_an_error(tmp_path: Path) -> None:
    dist.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert dist.group.WORLD is not None
        with pytest.raises(RuntimeError, match="before begin"):
            Exchange(dist.group.WORLD).finish()
    finally:
        dist.destroy_process_group()
