"""Which saves are under way, the same on every rank: a pure function of what the ranks reported to each other.

At most two: the first is being written, the second waits, staged. Every rank makes the same calls in the same order:
`add` when the gang saves, `settle` with the sum of all ranks' `StatusCounts`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

MOST = 2
"""One being written, one staged."""

FIRST_SAVES_ELSEWHERE = 4
MAX_SAVES_ELSEWHERE = 64
"""Saves that begin elsewhere before the first tier is tried again: this many at first, twice as many after each time
that it failed again, and at most this many."""


@dataclass(frozen=True)
class StatusCounts:
    """The status of the first save under way as one rank knows it; `settle` takes the sums over all ranks."""

    failed: int = 0
    """1: this rank's part, or the commit, was given up."""
    committed: int = 0
    """1, from the coordinator alone: the commit exists."""
    superseded: int = 0
    """1: another gang has formed a newer generation."""
    reading_back: tuple[int, ...] = ()
    """1 for each tier on which this rank's writer process has not finished reading back."""
    copying: tuple[int, ...] = ()
    """1 for each tier to which it has not finished copying."""
    away: tuple[int, ...] = ()
    """1 for each tier that this rank's agent finds full or out of reach. Empty: no tier is."""

    def to_list(self) -> list[int]:
        """The numbers that are summed over the ranks, all of which have the same tiers."""
        away = self.away or (0,) * len(self.reading_back)
        return [self.failed, self.committed, self.superseded, *self.reading_back, *self.copying, *away]

    @classmethod
    def from_list(cls, values: Sequence[int]) -> "StatusCounts":
        """From the numbers of `to_list`, or sums of them."""
        failed, committed, superseded, *counts = values
        tiers = len(counts) // 3
        reading_back, copying, away = (tuple(counts[i * tiers : (i + 1) * tiers]) for i in range(3))
        return cls(failed, committed, superseded, reading_back, copying, away if any(away) else ())


@dataclass(frozen=True)
class WriteAttempt:
    """One try to write a staged state to one tier."""

    step: int
    slot: int
    """Index of the staging buffer, 0 or 1."""
    tier: int
    """Index into the shared tiers."""
    name: str
    """Unique in the job: no two attempts share a file. It follows from the session, the save's number and the tier
    alone, so that ranks which know different things of an earlier save still write the same attempt."""
    number: int = 0
    """Counts the saves of the session."""
    tried: int = 0
    """Tiers that this save has failed on before."""


@dataclass(frozen=True)
class SettleResult:
    """The consequences of the sum of the ranks' status, the same on every rank."""

    committed: WriteAttempt | None = None
    abandoned: WriteAttempt | None = None
    """Failed on every tier: its buffer is free again."""
    moved: WriteAttempt | None = None
    """Failed on its tier, and begun anew on the next one, after the last the first: `start` holds that."""
    start: WriteAttempt | None = None
    """Every rank now hands this to its writer."""
    superseded: bool = False


class NextSaveTier:
    """The tier on which the next save begins: not one that has failed, which is tried again now and then.

    A tier that hangs costs a save its whole deadline: so only few saves begin there until one is committed there.
    """

    def __init__(self) -> None:
        self._elsewhere = 0  # the tier that takes the saves instead; 0: none
        self._saves_elsewhere = FIRST_SAVES_ELSEWHERE
        self._left = 0

    @property
    def index(self) -> int:
        """The tier for the save that begins next."""
        return self._elsewhere if self._left else 0

    def note_begun(self, tier: int) -> None:
        """A save has begun on this tier: on `index`, or where the gang has agreed to."""
        if self._elsewhere == 0:
            return
        if tier == 0:
            self._saves_elsewhere = min(MAX_SAVES_ELSEWHERE, 2 * self._saves_elsewhere)
            self._left = self._saves_elsewhere
        else:
            self._left = max(0, self._left - 1)

    def note_committed(self, tier: int, moved: bool) -> None:
        """A save was committed on this tier; moved: it had failed on another one before."""
        if tier == 0:
            self._elsewhere, self._saves_elsewhere, self._left = 0, FIRST_SAVES_ELSEWHERE, 0
        elif moved:
            if self._elsewhere == 0:
                self._left = FIRST_SAVES_ELSEWHERE
            self._elsewhere = tier


class SaveQueue:
    """The saves of one generation of the gang."""

    def __init__(self, tiers: int, session: str) -> None:
        """session: random, and the same on every rank: makes the attempts' names unique."""
        self._tiers = tiers
        self._session = session
        self._numbers: Iterator[int] = count()
        self._attempts: list[WriteAttempt] = []
        self._first = NextSaveTier()
        self._away: frozenset[int] = frozenset()  # tiers that some rank does not reach, by the last status
        self._undecided: set[int] = set()  # numbers of the saves that begin on whatever tier is the first one then
        self.failures = 0
        """Saves in a row that were given up."""

    @property
    def under_way(self) -> WriteAttempt | None:
        """The attempt that is being written."""
        return self._attempts[0] if self._attempts else None

    @property
    def attempts(self) -> tuple[WriteAttempt, ...]:
        """The attempt that is being written, then the one that waits for it."""
        return tuple(self._attempts)

    @property
    def steps(self) -> list[int]:
        """Steps whose state is being written or waits for it."""
        return [attempt.step for attempt in self._attempts]

    def has_free_slot(self) -> bool:
        """Whether there is a free buffer."""
        return len(self._attempts) < MOST

    def free_slot(self) -> int:
        """Index of a buffer that nothing is read from. Raises ValueError if there is none."""
        if not self.has_free_slot():
            raise ValueError("both buffers are in use")
        taken = {attempt.slot for attempt in self._attempts}
        return next(slot for slot in range(MOST) if slot not in taken)

    def is_away(self, tier: int) -> bool:
        """Whether some rank does not reach the tier, by the last status."""
        return tier in self._away

    @property
    def next_tier(self) -> int:
        """Index of the tier that a save would begin on now."""
        return self._first.index

    def add(self, step: int, tier: int | None = 0) -> WriteAttempt | None:
        """The state of `step` is being staged into `free_slot()`: what to hand to the writer now; None: it waits.

        tier: to begin on; None: on what `next_tier` is when the write begins, which is for ranks that settle together.
        Those that settle at different moments have to agree on one here.
        """
        slot, number = self.free_slot(), next(self._numbers)
        self._attempts.append(self._make_attempt(step, slot, tier or 0, number))
        if tier is None:
            self._undecided.add(number)
        else:
            self._first.note_begun(tier)
        return self._place_head() if len(self._attempts) == 1 else None

    def settle(self, sums: StatusCounts) -> SettleResult:
        """sums: of all ranks' status of `under_way`. A commit counts even if a rank failed after its part.

        A save does not wait for its deadline on a tier that is away, where there is another one.
        """
        self._away = frozenset(tier for tier, ranks in enumerate(sums.away) if ranks)
        head = self.under_way
        if head is None:
            return SettleResult()
        if sums.superseded:
            return SettleResult(superseded=True)
        if sums.committed:
            self.failures = 0
            self._first.note_committed(head.tier, moved=head.tried > 0)
            return SettleResult(committed=self._attempts.pop(0), start=self._place_head())
        following = self._reachable_tier((head.tier + 1) % self._tiers)
        if not sums.failed and (head.tier not in self._away or following in self._away):
            return SettleResult()
        if head.tried + 1 < self._tiers:
            self._attempts[0] = self._make_attempt(head.step, head.slot, following, head.number, head.tried + 1)
            return SettleResult(moved=head, start=self._attempts[0])
        self.failures += 1
        return SettleResult(abandoned=self._attempts.pop(0), start=self._place_head())

    def _place_head(self) -> WriteAttempt | None:
        """The save whose turn it is, on the tier that it begins on."""
        head = self.under_way
        if head is not None and head.number in self._undecided:
            self._undecided.remove(head.number)
            tier = self._reachable_tier(self._first.index)
            self._first.note_begun(tier)
            self._attempts[0] = self._make_attempt(head.step, head.slot, tier, head.number)
        return self.under_way

    def _reachable_tier(self, tier: int) -> int:
        """This tier or, if it is away, the next one that is not; if all are, this one."""
        turns = ((tier + i) % self._tiers for i in range(self._tiers))
        return next((turn for turn in turns if turn not in self._away), tier)

    def _make_attempt(self, step: int, slot: int, tier: int, number: int, tried: int = 0) -> WriteAttempt:
        return WriteAttempt(step, slot, tier, f"{self._session}-{number:04d}-{tier}", number, tried)
