"""The algorithms of collectives, which build schedules for every number of ranks that they support. Pure.

Sources: Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH (2005); Bruck et
al., Efficient Algorithms for All-to-All Communications in Multiport Message-Passing Systems (1997); Sanders, Speck and
Träff, Two-Tree Algorithms for Full Bandwidth Broadcast, Reduction and Scan (2009).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from convoy.config.errors import ConfigError, must_be_one_of
from convoy.config.network import Operation
from convoy.network.collectives.schedule import ROOT, Round, Schedule, Transfer, TransferOp

PIECES = 8
"""Pieces into which a tree or a chain splits the buffer, so that they are pipelined."""

Rounds = Iterator[Round]


def _always(operation: Operation, ranks: int, per_host: int) -> bool:
    return True


@dataclass(frozen=True)
class Algorithm:
    """A way of carrying out some of the collectives."""

    name: str
    build: Callable[[Operation, int, int], Schedule]
    """The schedule of an operation, from the number of ranks and how many of them share a host."""
    operations: tuple[Operation, ...]
    allows: Callable[[Operation, int, int], bool] = _always
    """Whether it can carry out an operation among so many ranks, of which so many share a host."""
    needs: str = "2 ranks or more"
    """A description of the numbers of ranks that `allows` accepts."""

    def can(self, operation: Operation, ranks: int, per_host: int = 1) -> bool:
        """Whether the algorithm has a schedule of the operation for so many ranks, `per_host` of them on each host."""
        return ranks > 1 and operation in self.operations and self.allows(operation, ranks, per_host)

    def schedule(self, operation: Operation, ranks: int, per_host: int = 1) -> Schedule:
        """The schedule of an operation. Raises ValueError if the algorithm cannot carry it out among so many ranks."""
        if not self.can(operation, ranks, per_host):
            raise ValueError(f"{self.name}: has no {operation} of {ranks} ranks, {per_host} to a host")
        return self.build(operation, ranks, per_host)


def algorithms_for(operation: Operation, ranks: int, per_host: int = 1) -> list[Algorithm]:
    """The algorithms that can carry out an operation among `ranks` ranks, `per_host` of them on each host."""
    return [each for each in ALGORITHMS if each.can(operation, ranks, per_host)]


def find_algorithm(name: str, operation: Operation, ranks: int, per_host: int = 1) -> Algorithm:
    """The algorithm of that name, in which case, hyphens and underscores do not matter.

    Raises ConfigError if there is none, or if it cannot carry out the operation among so many ranks.
    """
    names = [each.name for each in ALGORITHMS if operation in each.operations]
    algorithm = next((each for each in ALGORITHMS if _plain(each.name) == _plain(name)), None)
    if algorithm is None or operation not in algorithm.operations:
        raise ConfigError(f"algorithm {name}: for {operation} {must_be_one_of(name, names)}")
    if not algorithm.can(operation, ranks, per_host):
        possible = ", ".join(each.name for each in algorithms_for(operation, ranks, per_host))
        raise ConfigError(
            f"algorithm {algorithm.name}: {operation} needs {algorithm.needs}, not {ranks} with {per_host} on each "
            f"host; these can use {possible}"
        )
    return algorithm


def _plain(name: str) -> str:
    return name.lower().replace("-", " ").replace("_", " ")


def _ring(operation: Operation, n: int, per_host: int) -> Schedule:
    """Each rank sends to the next one only: parts go around, and sums grow on the way."""
    rounds: list[Round] = []
    if operation in ("all_reduce", "reduce_scatter"):
        # Part p starts at rank p + 1 and is complete at rank p, whose own part it is.
        rounds += [_around(n, -1 - k, "add") for k in range(n - 1)]
    if operation in ("all_reduce", "all_gather"):
        rounds += [_around(n, -k, "copy") for k in range(n - 1)]
    return Schedule(n, n, tuple(rounds))


def _around(n: int, ahead: int, op: TransferOp) -> Round:
    """Every rank r sends chunk r + `ahead` to the next rank."""
    return tuple(Transfer(r, (r + 1) % n, ((r + ahead) % n,), op) for r in range(n))


def _chain(operation: Operation, n: int, per_host: int) -> Schedule:
    """Pieces follow each other from rank to rank, away from the root or towards it."""
    forward = operation == "broadcast"

    def hop(piece: int, at: int) -> Transfer:
        if forward:
            return Transfer(at, at + 1, (piece,), "copy")
        return Transfer(n - 1 - at, n - 2 - at, (piece,), "add")

    rounds = [
        tuple(hop(piece, step - piece) for piece in range(PIECES) if 0 <= step - piece < n - 1)
        for step in range(PIECES + n - 2)
    ]
    return Schedule(n, PIECES, tuple(rounds))


def _recursive_doubling(operation: Operation, n: int, per_host: int) -> Schedule:
    """In each round a rank exchanges all that it has with one that is twice as far away. Ranks above a power of two
    hand theirs to a neighbour first, and get the result from it last."""
    if operation == "all_gather":
        return _doubling_gather(n)
    core, rounds = 1 << (n.bit_length() - 1), list[Round]()
    rest = range(core, n)
    if rest:
        rounds.append(tuple(Transfer(r, r - core, (0,), "add") for r in rest))
    away = 1
    while away < core:
        rounds.append(tuple(Transfer(r, r ^ away, (0,), "add") for r in range(core)))
        away *= 2
    if rest:
        rounds.append(tuple(Transfer(r - core, r, (0,), "copy") for r in rest))
    return Schedule(n, 1, tuple(rounds))


def _doubling_gather(n: int) -> Schedule:
    """Every round doubles the consecutive parts that a rank holds, for any number of ranks (Bruck's all-gather)."""
    rounds, held = list[Round](), 1
    while held < n:
        sent = min(held, n - held)
        parts = {r: tuple((r + i) % n for i in range(sent)) for r in range(n)}
        rounds.append(tuple(Transfer(r, (r - held) % n, parts[r], "copy") for r in range(n)))
        held += sent
    return Schedule(n, n, tuple(rounds))


def _halving_doubling(operation: Operation, n: int, per_host: int) -> Schedule:
    """Partners exchange halves of what is left until each rank has the sum of one part (recursive halving), and then
    gather the parts the other way around (recursive doubling). Ranks above a power of two take part as in recursive
    doubling."""
    core = 1 << (n.bit_length() - 1)
    every, rest = tuple(range(core)), range(core, n)
    halving = [_halves(core, away) for away in _powers_below(core, falling=True)]
    rounds: list[Round] = []
    if operation in ("all_reduce", "reduce_scatter"):
        if rest:
            rounds.append(tuple(Transfer(r, r - core, every, "add") for r in rest))
        rounds += [tuple(Transfer(r, p, theirs, "add") for r, p, _, theirs in each) for each in halving]
    if operation in ("all_reduce", "all_gather"):
        rounds += [tuple(Transfer(r, p, own, "copy") for r, p, own, _ in each) for each in reversed(halving)]
        if rest:
            rounds.append(tuple(Transfer(r - core, r, every, "copy") for r in rest))
    return Schedule(n, core, tuple(rounds))


def _halves(core: int, away: int) -> list[tuple[int, int, tuple[int, ...], tuple[int, ...]]]:
    """List, for each rank: the rank, its partner, the parts that it keeps, and those that its partner keeps."""
    found = []
    for rank in range(core):
        first = rank // (2 * away) * 2 * away
        low, high = tuple(range(first, first + away)), tuple(range(first + away, first + 2 * away))
        own, theirs = (high, low) if rank & away else (low, high)
        found.append((rank, rank ^ away, own, theirs))
    return found


def _powers_below(n: int, *, falling: bool = False) -> list[int]:
    powers = [1 << i for i in range((n - 1).bit_length())]
    return powers[::-1] if falling else powers


def _tree(operation: Operation, n: int, per_host: int) -> Schedule:
    """Pieces follow each other along a binary tree, whose root is rank 0: up as sums, down as results."""
    ways: dict[Operation, Callable[[int], list[Round]]] = {
        "reduce": lambda piece: _climb(n, piece),
        "broadcast": lambda piece: _descend(n, piece),
        # A sum goes down as soon as it is complete, against those that still climb.
        "all_reduce": lambda piece: _climb(n, piece) + _descend(n, piece),
    }
    return Schedule(n, PIECES, _merge([ways[operation](piece) for piece in range(PIECES)]))


def _depth(rank: int) -> int:
    return (rank + 1).bit_length() - 1


def _descend(n: int, piece: int) -> list[Round]:
    """A piece from the root to all others. A parent sends to one child after the other."""
    rounds: list[Round] = []
    for depth in range(_depth(n - 1)):
        parents = [r for r in range(n) if _depth(r) == depth]
        for child in (1, 2):
            rounds.append(tuple(Transfer(r, 2 * r + child, (piece,), "copy") for r in parents if 2 * r + child < n))
    return rounds


def _climb(n: int, piece: int) -> list[Round]:
    """A piece from all ranks to the root, as sums: the reverse of `_descend`."""
    return [tuple(Transfer(t.target, t.source, t.chunks, "add") for t in each) for each in reversed(_descend(n, piece))]


def _merge(pieces: Sequence[Sequence[Round]]) -> tuple[Round, ...]:
    """Pipeline the pieces: each starts two rounds after the one before it. Rounds without a message are left out."""
    length = max(len(each) + 2 * i for i, each in enumerate(pieces))
    rounds: list[list[Transfer]] = [[] for _ in range(length)]
    for i, each in enumerate(pieces):
        for number, transfers in enumerate(each):
            rounds[number + 2 * i] += transfers
    return tuple(tuple(each) for each in rounds if each)


def _direct(operation: Operation, n: int, per_host: int) -> Schedule:
    """Each rank sends every other rank its part in a single round, and receives its own part from each."""
    others = [(r, (r + away) % n) for away in range(1, n) for r in range(n)]
    if operation == "all_to_all":
        sent = tuple(Transfer(r, p, (p,), "copy", (n + r,)) for r, p in others)
        return Schedule(n, 2 * n, ((*_keep_own(n), *sent),))
    scatter = tuple(Transfer(r, p, (p,), "add") for r, p in others)
    gather = tuple(Transfer(r, p, (r,), "copy") for r, p in others)
    rounds: dict[Operation, tuple[Round, ...]] = {
        "reduce_scatter": (scatter,),
        "all_gather": (gather,),
        "all_reduce": (scatter, gather),
        "gather": (tuple(Transfer(r, ROOT, (r,), "copy") for r in range(1, n)),),
        "scatter": (tuple(Transfer(ROOT, r, (r,), "copy") for r in range(1, n)),),
    }
    return Schedule(n, n, rounds[operation])


def _keep_own(n: int) -> Round:
    """The part of an all-to-all that a rank sends itself: it moves within the rank's buffer."""
    return tuple(Transfer(r, r, (r,), "copy", (n + r,)) for r in range(n))


def _pairwise(operation: Operation, n: int, per_host: int) -> Schedule:
    """In each round k a rank sends to the rank k ahead of it, and receives from the rank k behind it."""
    rounds = [
        tuple(Transfer(r, (r + away) % n, ((r + away) % n,), "copy", (n + r,)) for r in range(n))
        for away in range(1, n)
    ]
    return Schedule(n, 2 * n, ((*_keep_own(n), *rounds[0]), *rounds[1:]))


def _bruck(operation: Operation, n: int, per_host: int) -> Schedule:
    """A chunk for the rank `distance` ahead takes one hop for each power of two in `distance`, in one message with all
    other chunks that take the same hop. There are few rounds, but chunks are sent several times."""

    def place(rank: int, distance: int) -> int:
        """Index of the chunk that a rank holds for a rank `distance` ahead."""
        return (rank + distance) % n

    rounds: list[Round] = []
    for hop in _powers_below(n):
        moved = [distance for distance in range(1, n) if distance & hop]
        transfers = []
        for rank in range(n):
            target = (rank + hop) % n
            last = [distance >> hop.bit_length() == 0 for distance in moved]  # no higher power of two is left
            stored = [
                n + (target - distance) % n if done else place(target, distance)
                for distance, done in zip(moved, last, strict=True)
            ]
            sent = tuple(place(rank, distance) for distance in moved)
            transfers.append(Transfer(rank, target, sent, "copy", tuple(stored)))
        rounds.append(tuple(transfers))
    return Schedule(n, 2 * n, ((*_keep_own(n), *rounds[0]), *rounds[1:]))


def _hierarchical(operation: Operation, n: int, per_host: int) -> Schedule:
    """Within each host a reduce-scatter, then between hosts an all-reduce of each part by the ranks that hold it, one
    rail each, then within each host an all-gather. Rings throughout."""
    hosts = n // per_host
    chunks = per_host * hosts
    within, between = _ring("reduce_scatter", per_host, 1), _ring("all_reduce", hosts, 1)
    gather = _ring("all_gather", per_host, 1)

    def inside(each: Round) -> Round:
        """A round of one host's ranks, on all hosts, with a part of as many chunks as there are hosts."""
        return tuple(
            Transfer(host * per_host + t.source, host * per_host + t.target, _part(t.chunks[0], hosts), t.op)
            for host in range(hosts)
            for t in each
        )

    def across(each: Round) -> Round:
        """A round of one rail's ranks, on all rails."""
        return tuple(
            Transfer(t.source * per_host + rail, t.target * per_host + rail, (rail * hosts + t.chunks[0],), t.op)
            for rail in range(per_host)
            for t in each
        )

    rounds = (*map(inside, within.rounds), *map(across, between.rounds), *map(inside, gather.rounds))
    return Schedule(n, chunks, rounds)


def _part(part: int, size: int) -> tuple[int, ...]:
    return tuple(range(part * size, (part + 1) * size))


def _allows_halving(operation: Operation, ranks: int, per_host: int) -> bool:
    """Ranks above a power of two have no part of their own."""
    return operation == "all_reduce" or ranks & (ranks - 1) == 0


ALGORITHMS: tuple[Algorithm, ...] = (
    Algorithm("ring", _ring, ("all_reduce", "all_gather", "reduce_scatter")),
    Algorithm("chain", _chain, ("broadcast", "reduce")),
    Algorithm("recursive doubling", _recursive_doubling, ("all_reduce", "all_gather")),
    Algorithm(
        "halving-doubling",
        _halving_doubling,
        ("all_reduce", "all_gather", "reduce_scatter"),
        _allows_halving,
        "a power of two of ranks",
    ),
    Algorithm("binary tree", _tree, ("all_reduce", "broadcast", "reduce")),
    Algorithm(
        "hierarchical",
        _hierarchical,
        ("all_reduce",),
        lambda operation, ranks, per_host: 1 < per_host < ranks and ranks % per_host == 0,
        "several hosts with the same number of ranks, at least 2, on each",
    ),
    Algorithm(
        "direct exchange",
        _direct,
        ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"),
    ),
    Algorithm("pairwise", _pairwise, ("all_to_all",)),
    Algorithm("Bruck", _bruck, ("all_to_all",), lambda operation, ranks, per_host: ranks > 2, "3 ranks or more"),
)
