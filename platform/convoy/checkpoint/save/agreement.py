"""Ranks that exchange the status of their saves at each step: they settle each save together."""

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist

from convoy.checkpoint.group import all_gather_objects
from convoy.checkpoint.save.driver import SaveDriver
from convoy.checkpoint.save.post_commit import BusyTiers
from convoy.checkpoint.save.queue import StatusCounts, WriteAttempt

FIRST_PAUSE_SECONDS = 0.002
MAX_PAUSE_SECONDS = 0.1
"""Between two exchanges while the gang does nothing but wait for its saves."""


@dataclass(eq=False)
class StepSettlement:
    """The sum over all ranks of a save's status decides what follows: no rank acts on what it alone knows."""

    group: dist.ProcessGroup
    """On the CPU."""
    tiers: int
    """How many there are."""
    away: Callable[[], Collection[int]] = tuple
    """Those that this rank finds full or out of reach."""
    passed: Callable[[], None] = lambda: None
    """Called before each exchange of a wait."""
    _driver: SaveDriver = field(init=False)

    def attach(self, driver: SaveDriver) -> None:
        self._driver = driver

    def status(self) -> StatusCounts:
        """This rank's status of the save under way, with its other work. Never blocks."""
        driver = self._driver
        own, busy, away = driver.engine.status(driver.queue.under_way), driver.engine.writer.busy(), self.away()
        own = replace(own, reading_back=self._tier_flags(busy.reading_back), copying=self._tier_flags(busy.copying))
        return replace(own, away=self._tier_flags(away)) if away else own

    def settle(self, sums: StatusCounts) -> None:
        """Draw the conclusions from the sum of all ranks' status. All of them call it at once."""
        settled = self._driver.settle(sums)
        # While a save is under way a newer commit is to be expected, which counts for more.
        if self._driver.queue.under_way is None and not settled.superseded:
            self._driver.request_left_out_work(BusyTiers.from_sums(sums))

    def on_submit(self) -> None:
        pass

    def failure_reason(self, attempt: WriteAttempt, own_error: str | None) -> str:
        """The lowest rank's that knows one. A collective, but only when a save has failed."""
        errors = all_gather_objects(own_error, self.group)
        first = next((f"rank {rank}: {error}" for rank, error in enumerate(errors) if error), "")
        away = self._driver.queue.is_away(attempt.tier)
        return first or ("the tier is full or out of reach" if away else "no rank knows why")

    def wait_until_left(self, most_under_way: int, timeout_seconds: float | None = None) -> bool:
        """All ranks call it at once, without a time-out."""
        driver, pauses = self._driver, _growing_pauses()
        while len(driver.queue.steps) > most_under_way:
            self.passed()
            sums = torch.tensor(self.status().to_list())
            dist.all_reduce(sums, group=self.group)
            before = driver.queue.under_way
            self.settle(StatusCounts.from_list(sums.tolist()))
            if driver.queue.under_way == before:
                time.sleep(next(pauses))
            else:
                pauses = _growing_pauses()
        return True

    def _tier_flags(self, tiers: Collection[int]) -> tuple[int, ...]:
        """1 for each tier that is among them."""
        return tuple(int(tier in tiers) for tier in range(self.tiers))


def _growing_pauses() -> Iterator[float]:
    pause = FIRST_PAUSE_SECONDS
    while True:
        yield pause
        pause = min(MAX_PAUSE_SECONDS, 1.5 * pause)
