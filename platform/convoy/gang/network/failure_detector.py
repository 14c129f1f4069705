"""Who is silent for too long: a level of suspicion that grows with silence, from how regularly a peer was heard.

Phi accrual, after Hayashibara, Défago, Yared, Katayama: "The phi accrual failure detector", SRDS 2004. At a level of
phi, a peer that goes on as before would be as late as this once in 10^phi beats.
"""

import math
from collections import deque
from dataclasses import dataclass

BEAT_SECONDS = 0.2
"""Between two beats of an agent to a peer."""

MOST_PHI = 300.0
"""What a level is cut off at: the chance itself is too small for a float."""


@dataclass(frozen=True)
class Patience:
    """When silence becomes suspicious."""

    beat_seconds: float = BEAT_SECONDS
    phi: float = 8.0
    """Suspect at this level: with beats as regular as can be, after 1.6 s."""
    least_missed: int = 6
    """Never before so many beats are missing."""
    most_seconds: float = 5.0
    """Always after this, however irregular the peer was."""
    least_deviation_seconds: float = 0.25
    """Taken for the standard deviation where the measured one is smaller: a busy host, or a network that was away for
    a second, delays a beat without notice, and the normal distribution knows no such tail."""
    window: int = 100
    """So many intervals are remembered: 20 s."""


class Suspicion:
    """One peer. All times are seconds of this process's AwakeClock, given by the caller."""

    def __init__(self, now: float, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._intervals: deque[float] = deque()
        self._sum = self._squares = 0.0
        self._last = now
        self._remember(self._patience.beat_seconds)

    def heard(self, now: float) -> None:
        """A beat came, or several at once."""
        quiet = self.quiet_seconds(now)
        if quiet == 0.0:
            return
        if not self.suspect(now):  # what was a failure is no habit
            self._remember(quiet)
        self._last = now

    def quiet_seconds(self, now: float) -> float:
        """Since the peer was last heard."""
        return max(0.0, now - self._last)

    def phi(self, now: float) -> float:
        """The level of suspicion, 0 to MOST_PHI."""
        count = len(self._intervals)
        mean = self._sum / count
        deviation = math.sqrt(max(0.0, self._squares / count - mean * mean))
        deviation = max(deviation, self._patience.least_deviation_seconds)
        later = 0.5 * math.erfc((self.quiet_seconds(now) - mean) / (deviation * math.sqrt(2.0)))
        return min(MOST_PHI, -math.log10(later)) if later > 0.0 else MOST_PHI

    def suspect(self, now: float) -> bool:
        """Whether the peer is to be taken for lost."""
        patience, quiet = self._patience, self.quiet_seconds(now)
        if quiet <= patience.least_missed * patience.beat_seconds:
            return False
        return quiet >= patience.most_seconds or self.phi(now) >= patience.phi

    def _remember(self, interval: float) -> None:
        self._intervals.append(interval)
        self._sum += interval
        self._squares += interval * interval
        if len(self._intervals) > self._patience.window:
            oldest = self._intervals.popleft()
            self._sum -= oldest
            self._squares -= oldest * oldest


class AwakeClock:
    """Seconds for which the loop that ticks it was awake: nobody else is silent for what this process slept.

    A process that was stopped, or a host that was paused, finds all its peers silent when it goes on, and they may
    have slept too. So no tick counts for more than `longest_seconds`, and a clock that jumps back does not count.
    """

    def __init__(self, now: float, longest_seconds: float = 0.3) -> None:
        self._now = now
        self._longest_seconds = longest_seconds
        self._awake = 0.0

    def tick(self, now: float) -> float:
        """Seconds awake so far. now: of a monotonic clock. To be called a few times per longest_seconds."""
        self._awake += min(max(0.0, now - self._now), self._longest_seconds)
        self._now = now
        return self._awake
