"""A training on machines that are taken away, simulated: what is lost to saves, to work done again and to restarts.

Machines are taken independently, each at the same constant rate, and the gang stops when it loses one: so its
interruptions are a Poisson process. Between two of them it works for `interval`, saves, works on; a save is of use once
it is durable. An interruption that is announced in time loses no work; another one loses all since the newest durable
save. One that comes during a restart begins the restart anew. Time goes from interruption to interruption, not from
step to step: what happens between two of them is arithmetic.
"""

import math
from collections.abc import Iterator

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from convoy.stats.interruptions import best_interval


class Assumed(BaseModel):
    """What a campaign is made of. Seconds, of the gang as a whole."""

    model_config = ConfigDict(frozen=True)

    seconds: float = Field(gt=0)
    """It lasts so long."""
    mtbf_seconds: float = Field(gt=0)
    """Mean time between interruptions of the gang."""
    stall_seconds: float = Field(gt=0)
    """For which the work stands still for a save."""
    durable_seconds: float = Field(0.0, ge=0)
    """From the beginning of a save until it is of use."""
    restart_seconds: float = Field(ge=0)
    """From an interruption that was not announced until work goes on, from the newest durable save."""
    announced_share: float = Field(0.0, ge=0, le=1)
    """Of interruptions: the gang can save all it has done before them."""
    announced_seconds: float = Field(0.0, ge=0)
    """From the notice of such a one until work goes on."""

    @property
    def interval(self) -> float:
        """Seconds of work between two saves: Daly's best, as if no interruption were announced, for nobody relies on
        that; never so few that a save begins before the one before it is durable."""
        return max(best_interval(self.stall_seconds, self.mtbf_seconds), self.durable_seconds - self.stall_seconds)


class Course(BaseModel):
    """How one campaign went. Seconds; the four parts of its time make up all of it."""

    model_config = ConfigDict(frozen=True)

    productive: float
    """Work that was not done again."""
    stalled: float
    recomputed: float
    """Work that was lost."""
    restarting: float
    interruptions: int
    recovered: int
    """Interruptions after which the gang came further than it had been, before the next one or the end."""
    cut_off: int
    """Interruptions so shortly before the end that it cannot be told whether it would have: 0 or 1."""

    @property
    def seconds(self) -> float:
        return self.productive + self.stalled + self.recomputed + self.restarting

    @property
    def overhead(self) -> float:
        """All other time over the productive time; infinite where there is none."""
        return (self.seconds - self.productive) / self.productive if self.productive > 0 else math.inf


def simulate(assumed: Assumed, seed: int) -> Course:
    """One campaign. The same seed gives the same one."""
    random = np.random.default_rng(seed)
    interval, lag = assumed.interval, max(0.0, assumed.durable_seconds - assumed.stall_seconds)
    cycle = interval + assumed.stall_seconds
    productive = stalled = recomputed = restarting = 0.0
    interruptions = recovered = cut_off = 0
    down = again = 0.0  # restart that is to be gone through, and work until the gang is as far as it ever was
    for up, announced, last in _times(assumed, random):
        waited = min(up, down)
        restarting += waited
        saves, left = divmod(up - waited, cycle)
        done = saves * interval + min(left, interval)
        stalled += saves * assumed.stall_seconds + max(0.0, left - interval)
        further = up > down and done >= again
        if interruptions:
            recovered += further
            cut_off += last and not further
        if last:
            productive += done
            break
        interruptions += 1
        kept = done if announced and up > down else interval * max(0.0, (up - waited - lag) // cycle)
        productive += kept
        recomputed += done - kept
        again = max(again, done) - kept  # from the newest durable save to as far as it ever was
        down = assumed.announced_seconds if announced else assumed.restart_seconds
    return Course(
        productive=productive, stalled=stalled, recomputed=recomputed, restarting=restarting,
        interruptions=interruptions, recovered=recovered, cut_off=cut_off,
    )  # fmt: skip


def _times(assumed: Assumed, random: np.random.Generator) -> Iterator[tuple[float, bool, bool]]:
    """Seconds since the interruption before, whether this one is announced, and whether it is the end instead."""
    left = assumed.seconds
    while True:
        up, announced = float(random.exponential(assumed.mtbf_seconds)), bool(random.random() < assumed.announced_share)
        if up >= left:
            yield left, False, True
            return
        left -= up
        yield up, announced, False
