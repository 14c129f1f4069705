"""How long a rank waits for the coordinator's commit before it gives the attempt up by its own clock. No clock in here.

The coordinator settles an attempt within a known time of its own beginning, but it may begin later than this rank: a
rank whose part fails goes on to the next tier at once, and the coordinator, where it cannot hear of that, only at its
deadline. Who gave up before the coordinator can have would tell of a failure, and the coordinator commit.
"""


class Patience:
    """Of one rank, which tells it what it begins and settles, in order; times are of one clock, in seconds."""

    def __init__(self, longest_seconds: float, slack_seconds: float) -> None:
        """longest: from the coordinator's beginning of an attempt to its end. slack: for what two ranks hear of the
        same event at different moments."""
        self._longest = longest_seconds
        self._slack = slack_seconds
        self._abreast = 0.0  # by then the coordinator has settled all that this rank has
        self._over = 0.0  # by then it has settled what is under way here
        self._untold = False

    def begun(self, now: float) -> None:
        """This rank has begun an attempt."""
        self._over = max(now, self._abreast) + self._longest

    def settled(self, now: float, *, alone: bool) -> None:
        """It has settled the attempt. alone: the coordinator may not know why yet."""
        self._abreast = self._over if alone else now
        self._untold = self._untold or alone

    def tells(self) -> None:
        """It is about to tell the gang all that it has settled."""
        self._untold = False

    def aligned(self, now: float) -> None:
        """The gang has drawn its conclusions from what each rank told."""
        if not self._untold:  # else it has settled something since it told
            self._abreast = now
            self._over = min(self._over, now + self._longest)

    def ended(self, now: float) -> bool:
        """Whether the coordinator must have settled by now what is under way here."""
        return now > self._over + self._slack
