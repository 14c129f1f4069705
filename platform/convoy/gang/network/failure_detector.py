"""Which peer has been silent for too long: a level of suspicion that grows with silence, relative to its regularity.

Phi accrual, after Hayashibara, Défago, Yared, Katayama: "The phi accrual failure detector", SRDS 2004. At a level of
phi, a peer that continues as before would be this late once in 10^phi beats.
"""

import math
from collections import deque
from statistics import fmean

BEAT_SECONDS = 0.2
"""Between two beats of an agent to a peer."""

MAX_PHI = 300.0
"""Highest level: beyond it the probability is too small for a float."""


SUSPECT_PHI = 8.0
"""A peer is suspect at this level: after 1.6 s if its beats are perfectly regular."""

MIN_SECONDS = 6 * BEAT_SECONDS
"""A peer is never suspect before so many beats are missing."""

MAX_SECONDS = 5.0
"""A peer is always suspect after this, however irregular it was."""

MIN_DEVIATION_SECONDS = 0.25
"""Lower bound of the standard deviation: a busy host, or a network that was away for a second, delays a beat without
warning, and the normal distribution has no such tail."""

WINDOW = 100
"""Number of intervals that are remembered: 20 s."""


class FailureDetector:
    """For one peer. All times are seconds of this process's AwakeClock, passed in by the caller."""

    def __init__(self, now: float) -> None:
        self._intervals = deque([BEAT_SECONDS], maxlen=WINDOW)
        self._last = now

    def record_heartbeat(self, now: float) -> None:
        """A beat arrived, or several at once."""
        quiet = self.quiet_seconds(now)
        if quiet == 0.0:
            return
        if not self.is_suspect(now):  # a failure does not count as regularity
            self._intervals.append(quiet)
        self._last = now

    def quiet_seconds(self, now: float) -> float:
        """Since the peer was last heard."""
        return max(0.0, now - self._last)

    def phi(self, now: float) -> float:
        """The level of suspicion, 0 to MAX_PHI."""
        mean = fmean(self._intervals)
        variance = fmean((interval - mean) ** 2 for interval in self._intervals)
        deviation = max(math.sqrt(variance), MIN_DEVIATION_SECONDS)
        later = 0.5 * math.erfc((self.quiet_seconds(now) - mean) / (deviation * math.sqrt(2.0)))
        return min(MAX_PHI, -math.log10(later)) if later > 0.0 else MAX_PHI

    def is_suspect(self, now: float) -> bool:
        """Whether the peer is to be considered lost."""
        quiet = self.quiet_seconds(now)
        return quiet > MIN_SECONDS and (quiet >= MAX_SECONDS or self.phi(now) >= SUSPECT_PHI)


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
