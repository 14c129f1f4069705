"""On which tier the next save begins: past one that has failed, which is tried again now and then. Pure."""

FIRST_PATIENCE = 4
MOST_PATIENCE = 64
"""Saves that begin elsewhere before the first tier is tried again: this many at first, twice as many after each time
that it failed again, and at most this many."""


class FirstTier:
    """A tier that hangs costs a save its whole deadline: so only few saves begin there until one is committed there."""

    def __init__(self) -> None:
        self._elsewhere = 0  # the tier that takes the saves instead; 0: none
        self._patience = FIRST_PATIENCE
        self._left = 0

    @property
    def next(self) -> int:
        """The tier for the save that begins next."""
        return self._elsewhere if self._left else 0

    def begun(self, tier: int) -> None:
        """A save has begun on this tier: on `next`, or where the gang has agreed to."""
        if self._elsewhere == 0:
            return
        if tier == 0:
            self._patience = min(MOST_PATIENCE, 2 * self._patience)
            self._left = self._patience
        else:
            self._left = max(0, self._left - 1)

    def committed(self, tier: int, moved: bool) -> None:
        """A save was committed on this tier; moved: it had failed on another one before."""
        if tier == 0:
            self._elsewhere, self._patience, self._left = 0, FIRST_PATIENCE, 0
        elif moved:
            if self._elsewhere == 0:
                self._left = FIRST_PATIENCE
            self._elsewhere = tier
