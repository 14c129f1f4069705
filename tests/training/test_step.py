"""The exchange of a step, and to which part of the step a rank's waiting belongs."""

import itertools
import statistics
import time
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from convoy.checkpoint.save.queue import StatusCounts
from convoy.job.events.registry import StepDone
from convoy.training.engines import convoy
from convoy.training.engines.convoy import ConvoyEngine
from convoy.training.step import StepAgreement, StepExchange, StopReason, Vote
from tests.ranks import in_a_group
from tests.training.job import GPT, Job, tiny
from tests.training.sharded import alone, sharded_model

Offer = tuple[int, Vote | None] | tuple[int, Vote | None, StatusCounts]
NOTHING = StatusCounts()


def exchanged(offers: list[list[Offer]]) -> list[list[StepAgreement]]:
    """What each rank is told; offers[step][rank]."""
    return in_a_group(len(offers[0]), _exchange, offers)


def _exchange(rank: int, offers: list[list[Offer]]) -> list[StepAgreement]:
    exchange, told = StepExchange(cast(dist.ProcessGroup, dist.group.WORLD)), []
    for offer in offers:
        exchange.begin(*(*offer[rank], NOTHING)[:3])
        told.append(exchange.finish())
    return told


NONE = StepAgreement(3, None, NOTHING)
EXCHANGES: list[tuple[list[Offer], StepAgreement]] = [
    # Tokens are summed, in each step anew.
    ([(3, None), (4, None), (0, None)], StepAgreement(7, None, NOTHING)),
    ([(1, None), (1, None), (1, None)], NONE),
    # One rank is enough to stop all.
    ([(1, None), (1, "requested"), (1, None)], StepAgreement(3, "requested", NOTHING)),
    # One rank is enough for all to save, and nobody stops for it.
    ([(1, "save"), (1, None), (1, None)], StepAgreement(3, None, NOTHING, save=True)),
    ([(1, None), (1, None), (1, None)], NONE),
    # What each rank knows of the save under way is summed.
    (
        [(1, None, StatusCounts(committed=1)), (1, None), (1, None)],
        StepAgreement(3, None, StatusCounts(committed=1)),
    ),
    (
        [(1, "requested", StatusCounts(failed=1)), (1, None, StatusCounts(failed=1, superseded=1)), (1, None)],
        StepAgreement(3, "requested", StatusCounts(failed=2, superseded=1)),
    ),
]
OF_TWO_TIERS = [
    StatusCounts(reading_back=(1, 0), copying=(0, 1)),
    StatusCounts(committed=1, reading_back=(1, 0), copying=(0, 0)),
]
"""What each rank is busy with is summed by tier."""


def test_all_ranks_are_told_the_same() -> None:
    assert exchanged([offers for offers, _ in EXCHANGES]) == [[agreed for _, agreed in EXCHANGES]] * 3
    total = StatusCounts(committed=1, reading_back=(2, 0), copying=(0, 1))
    assert exchanged([[(1, None, status) for status in OF_TWO_TIERS]]) == [[StepAgreement(2, None, total)]] * 2


def test_all_name_the_same_of_several_reasons_and_where_there_is_no_time_to_save_that() -> None:
    reasons: tuple[StopReason, ...] = get_args(StopReason)
    pairs: list[tuple[StopReason, Vote]] = list(itertools.product(reasons, (*reasons, "save")))

    told = exchanged([[(0, one), (0, other)] for one, other in pairs])

    assert told[0] == told[1]
    for agreed, pair in zip(told[0], pairs, strict=True):
        assert agreed.stop in pair
        assert agreed.stop == "preempted_unsaved" or "preempted_unsaved" not in pair


LATE_SECONDS = 0.2


def late_at_the_norm(rank: int) -> None:
    """Rank 1 comes so late to where all ranks add up the gradient norm."""

    def late(*args: Any, **named: Any) -> torch.Tensor:
        time.sleep(LATE_SECONDS)
        return get_total_norm(*args, **named)

    if rank == 1:
        convoy.get_total_norm = late  # type: ignore[attr-defined]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "sections", [{}, {"model": GPT | {"n_heads": 4}, "parallel": {"tensor": 2}}], ids=["sharded", "shared"]
)
def test_who_waits_for_others_at_the_gradient_norm_is_not_updating(tmp_path: Path, sections: dict[str, Any]) -> None:
    job = Job(str(tmp_path), tiny(train={"steps": 3, "log_every_steps": 1}, **sections))
    assert job.run(2, late_at_the_norm) == [False, False]
    steps = job.events(StepDone)
    assert len(steps) == 3
    assert statistics.median(e.exchange_seconds for e in steps) > 0.9 * LATE_SECONDS
    assert statistics.median(e.optimizer_seconds for e in steps) < 0.5 * LATE_SECONDS


@alone
@pytest.mark.parametrize(("norm", "clip"), [(3.0, 1.0), (7e-3, 3e-4), (1.0000000001, 1.0), (0.5, 1.0), (9e9, None)])
def test_gradients_are_clipped_to_the_bits_of_torchs_own(norm: float, clip: float | None) -> None:
    config = tiny(train={"clip_norm": clip})
    model = sharded_model(config)
    parameters = list(model.parameters())
    tokens_bs = torch.zeros(2, 16, dtype=torch.int64)
    model(tokens_bs, tokens_bs).backward()
    gradients = [parameter.grad.to_local().clone() for parameter in parameters]  # type: ignore[union-attr,operator]
    optimizer = torch.optim.SGD(parameters, lr=0.0)

    ConvoyEngine(cast(FSDPModule, model), optimizer, config.train, config.parallel).update(0.0, norm)

    expected = [torch.nn.Parameter(gradient) for gradient in gradients]
    for parameter, gradient in zip(expected, gradients, strict=True):
        parameter.grad = gradient
    clip_grads_with_norm_(expected, clip or torch.inf, torch.tensor(norm))
    for one, other in zip(parameters, expected, strict=True):
        assert torch.equal(one.grad.to_local(), other.grad)  # type: ignore[union-attr,operator,arg-type]
