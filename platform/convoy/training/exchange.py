"""The per-step exchange: what every rank must know, decided by all of them at the same step."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist

from convoy.checkpoint.queue import Standing

StopReason = Literal["max_hours", "max_cost_usd", "requested"]
_REASONS: tuple[StopReason, ...] = ("max_hours", "max_cost_usd", "requested")


@dataclass(frozen=True)
class Agreed:
    """The same on every rank."""

    tokens: int
    """Targets with weight in this step's global batch."""
    stop: StopReason | None
    """End after this step; None: go on."""
    standing: Standing
    """Sums over all ranks: how the save under way stood when each began the exchange."""


class Exchange:
    """One all-reduce per step on the control group, in flight while the forward runs."""

    def __init__(self, control: dist.ProcessGroup) -> None:
        self._control = control
        self._values = torch.zeros(0, dtype=torch.int64)
        self._work: dist.Work | None = None

    def begin(self, tokens: int, vote: StopReason | None, standing: Standing) -> None:
        """Offer this rank's token count, its wish to stop, and what it knows of the save under way."""
        votes = [int(vote == reason) for reason in _REASONS]
        self._values = torch.tensor([tokens, *votes, *standing.values()], dtype=torch.int64)
        self._work = dist.all_reduce(self._values, group=self._control, async_op=True)

    def finish(self) -> Agreed:
        """What all ranks together have and want; waits for the slowest rank to begin."""
        if self._work is None:
            raise RuntimeError("Exchange.finish before begin")
        self._work.wait()
        self._work = None
        tokens, *rest = self._values.tolist()
        votes, standing = rest[: len(_REASONS)], Standing.of(rest[len(_REASONS) :])
        stop = next((reason for reason, count in zip(_REASONS, votes, strict=True) if count), None)
        return Agreed(tokens, stop, standing)
