"""Which peer has been silent for too long: a level of suspicion that grows with silence, relative to its regularity.

Phi accrual, after Hayashibara, Défago, Yared, Katayama: "The phi accrual failure detector", SRDS 2004. At a level of
phi, a peer that continues as before would be this late once in 10^phi beats.
"""

import math
from collections import deque
from dataclasses import dataclass

BEAT_SECONDS = 0.2
"""Between two beats of an agent to a peer."""

MOST_PHI = 300.0
"""Highest level: beyond it the probability is too small for a float."""


@dataclass(frozen=True)
class DetectorSettings:
    """When silence becomes suspicious."""

    beat_seconds: float = BEAT_SECONDS
    phi: float = 8.0
    """A peer is suspect at this level: after 1.6 s if its beats are perfectly regular."""
    least_missed: int = 6
    """A peer is never suspect before so many beats are missing."""
    most_seconds: float = 5.0
    """A peer is always suspect after this, however irregular it was."""
    least_deviation_seconds: float = 0.25
    """Lower bound of the standard deviation: a busy host, or a network that was away for a second, delays a beat
    without warning, and the normal distribution has no such tail."""
    window: int = 100
    """Number of intervals that are remembered: 20 s."""


class FailureDetector:
    """For one peer. All times are seconds of this process's AwakeClock, passed in by the caller."""

    def __init__(self, now: float, settings: DetectorSettings | None = None) -> None:
        self._settings = settings or DetectorSettings()
        self._intervals: deque[float] = deque()
        self._sum = self._squares = 0.0
        self._last = now
        self._remember(self._settings.beat_seconds)

    def heard(self, now: float) -> None:
        """A beat arrived, or several at once."""
        quiet = self.quiet_seconds(now)
        if quiet == 0.0:
            return
        if not self.is_suspect(now):  # a failure does not count as regularity
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
        deviation = max(deviation, self._settings.least_deviation_seconds)
        later = 0.5 * math.erfc((self.quiet_seconds(now) - mean) / (deviation * math.sqrt(2.0)))
        return min(MOST_PHI, -math.log10(later)) if later > 0.0 else MOST_PHI

    def is_suspect(self, now: float) -> bool:
        """Whether the peer is to be considered lost."""
        settings, quiet = self._settings, self.quiet_seconds(now)
        if quiet <= settings.least_missed * settings.beat_seconds:
            return False
        return quiet >= settings.most_seconds or self.phi(now) >= settings.phi

    def _remember(self, interval: float) -> None:
        self._intervals.append(interval)
        self._sum += interval
        self._squares += interval * interval
        if len(self._intervals) > self._settings.window:
            oldest = self._intervals.popleft()
            self._sum -= oldest
            self._squares -= oldest * oldest


class AwakeClock:
    """Seconds for which the loop that ticks it was awake: time that this process slept does not make a peer silent.

    A process that was stopped, or a host that was paused, finds all its peers silent when it resumes, and they may
    have slept too. So no tick counts for more than `longest_seconds`, and a clock that jumps back does not count.
    """

    def __init__(self, now: float, longest_seconds: float = 0.3) -> None:
        self._now = now
        self._longest_seconds = longest_seconds
        self._awake = 0.0

    def tick(self, now: float) -> float:
        """Seconds awake so far. now: of a monotonic clock. Call it a few times per longest_seconds."""
        self._awake += min(max(0.0, now - self._now), self._longest_seconds)
        self._now = now
        return self._awake
