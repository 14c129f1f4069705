"""An algorithm of a collective as data: who sends which chunks to whom in each round. Pure.

One executor runs every schedule (`network/schedule_runner.py`), `convoy net schedule` prints it, tests check it
symbolically, and the planner can time it without running it.
"""

from typing import Literal, NamedTuple

TransferOp = Literal["copy", "add"]


class Transfer(NamedTuple):
    """One message of a round."""

    source: int
    """Rank that sends."""
    target: int
    """Rank that receives."""
    chunks: tuple[int, ...]
    """Indices of the chunks that the message consists of, in the order in which they are sent."""
    op: TransferOp
    """What the receiver does with them: overwrite its own chunks, or add to them."""


class Schedule(NamedTuple):
    """A collective of `ranks` ranks on a buffer of `chunks` chunks of equal size."""

    ranks: int
    chunks: int
    rounds: tuple[tuple[Transfer, ...], ...]
    """Transfers of one round read what the rounds before it left, even where they overwrite it. A rank sends at most
    one message to each other rank in a round."""
