"""Schedules: the algorithm of a collective as data, which lists who sends which chunks to whom in each round. Pure.

One executor runs every schedule (`network/collectives/schedule_runner.py`), `convoy net schedule` prints it, tests
check it symbolically, and the planner can time it without running it.

Where chunks are before and after:

| operation | chunks of a rank's buffer | at the beginning | at the end |
|---|---|---|---|
| all_reduce, reduce | any | its contribution | the sum (of reduce: at the root) |
| broadcast | any | at the root: what is sent | the same |
| all_gather, gather | `ranks` parts | its own part | every part (of gather: at the root) |
| reduce_scatter | `ranks` parts | its contribution | the sum of its own part |
| scatter | `ranks` parts | at the root: every part | its own part |
| all_to_all | `ranks` parts to send, then as many received | part i is for rank i | part `ranks` + i is from rank i |
"""

from typing import Literal, NamedTuple

from convoy.config.network import Operation

ROOT = 0
"""The rank from which a broadcast or scatter starts, and at which a reduction or gather ends."""

TransferOp = Literal["copy", "add"]


class Transfer(NamedTuple):
    """One message of a round. Where source and target are the same rank, chunks move within its buffer."""

    source: int
    """Rank that sends."""
    target: int
    """Rank that receives."""
    chunks: tuple[int, ...]
    """Indices of the sender's chunks that the message consists of, in the order in which they are sent."""
    op: TransferOp
    """Whether the receiver overwrites its own chunks with them (`copy`), or adds them to its own (`add`)."""
    target_chunks: tuple[int, ...] | None = None
    """Indices of the receiver's chunks; None: the same as the sender's."""

    @property
    def stored(self) -> tuple[int, ...]:
        """Indices of the receiver's chunks."""
        return self.chunks if self.target_chunks is None else self.target_chunks


Round = tuple[Transfer, ...]


class Schedule(NamedTuple):
    """A collective of `ranks` ranks, each with a buffer of `chunks` chunks of equal size."""

    ranks: int
    chunks: int
    rounds: tuple[Round, ...]
    """Transfers of one round read what the rounds before it left, even where they overwrite it. A rank sends at most
    one message to each other rank in a round."""

    def whole(self, operation: Operation) -> int:
        """Number of chunks in the operation's whole buffer; for an all-to-all, in the part that is sent."""
        return self.chunks // 2 if operation == "all_to_all" else self.chunks
