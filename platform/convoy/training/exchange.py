"""The per-step exchange: what all ranks decide together at the same step."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.distributed as dist

from convoy.checkpoint.save.queue import SaveStatus

StopReason = Literal["preempted_unsaved", "preempted", "max_hours", "max_cost_usd", "requested"]
Vote = StopReason | Literal["save"]
"""save: commit the state after this step, and continue."""

URGENT_REASONS: tuple[StopReason, ...] = ("requested", "preempted", "preempted_unsaved")
"""Training that ends for one of these waits for no more than the commit."""

_REASONS: tuple[StopReason, ...] = get_args(StopReason)
"""The first of several counts: those with the least time come first."""


@dataclass(frozen=True)
class Agreement:
    """The result of an exchange; the same on every rank."""

    tokens: int
    """Targets with weight in this step's global batch."""
    stop: StopReason | None
    """End after this step; None: continue."""
    save_status: SaveStatus
    """Sums over all ranks: how the save under way stood when each began the exchange."""
    save: bool = False
    """Save after this step."""


class Exchange:
    """One all-reduce per step on the control group, in flight while the forward runs."""

    def __init__(self, control: dist.ProcessGroup, shared_by: int = 1) -> None:
        """shared_by: number of ranks that have the same tokens."""
        self._control = control
        self._shared_by = shared_by
        self._values = torch.zeros(0, dtype=torch.int64)
        self._work: dist.Work | None = None

    def begin(self, tokens: int, vote: Vote | None, save_status: SaveStatus) -> None:
        """Offer this rank's token count, its wish to stop or to save, and what it knows of the save under way."""
        votes = [int(vote == reason) for reason in _REASONS]
        self._values = torch.tensor([tokens, int(vote == "save"), *votes, *save_status.values()], dtype=torch.int64)
        self._work = dist.all_reduce(self._values, group=self._control, async_op=True)

    def finish(self) -> Agreement:
        """The sums over all ranks, and what they agree on; waits for the slowest rank to begin."""
        if self._work is None:
            raise RuntimeError("Exchange.finish before begin")
        self._work.wait()
        self._work = None
        tokens, save, *rest = self._values.tolist()
        votes, save_status = rest[: len(_REASONS)], SaveStatus.of(rest[len(_REASONS) :])
        stop = next((reason for reason, count in zip(_REASONS, votes, strict=True) if count), None)
        return Agreement(tokens // self._shared_by, stop, save_status, save > 0)


class UrgentStop:
    """Whether any rank must stop soon: one all-reduce on the control group, in flight while the ranks work."""

    def __init__(self, control: dist.ProcessGroup) -> None:
        self._control = control
        self._votes = torch.zeros((), dtype=torch.int64)
        self._work: dist.Work | None = None

    def begin(self, urgent: bool) -> None:
        """Offer whether this rank must."""
        self._votes = torch.tensor(int(urgent))
        self._work = dist.all_reduce(self._votes, group=self._control, async_op=True)

    def finish(self) -> bool:
        """The same on all ranks; waits for the slowest one to begin."""
        if self._work is None:
            raise RuntimeError("UrgentStop.finish before begin")
        self._work.wait()
        self._work = None
        return bool(self._votes)
