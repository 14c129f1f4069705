"""Every algorithm with the numbers of ranks that it is tested with, and schedules carried out with plain numbers."""

from convoy.config.network import Operation
from convoy.network.collectives.algorithms import ALGORITHMS, Algorithm
from convoy.network.collectives.schedule import Schedule

Numbers = list[list[int]]
"""By rank and chunk."""

RANKS = range(2, 34)

EVERY = [(algorithm, operation) for algorithm in ALGORITHMS for operation in algorithm.operations]


def shapes(algorithm: Algorithm, operation: Operation) -> list[tuple[int, int]]:
    """Ranks, and how many of them share a host, that the algorithm allows."""
    hosts = [(n, per_host) for n in RANKS for per_host in range(1, n) if n % per_host == 0]
    every = hosts if algorithm.name == "hierarchical" else [(n, 1) for n in RANKS]
    return [shape for shape in every if algorithm.can(operation, *shape)]


def named(name: str) -> Algorithm:
    return next(each for each in ALGORITHMS if each.name == name)


def numbers_after(schedule: Schedule, numbers: Numbers) -> Numbers:
    """What each chunk of each rank is at the end."""
    for transfers in schedule.rounds:
        before = [list(chunks) for chunks in numbers]
        numbers = [list(chunks) for chunks in numbers]
        for t in transfers:
            for sent, stored in zip(t.chunks, t.stored, strict=True):
                own = numbers[t.target][stored] if t.op == "add" else 0
                numbers[t.target][stored] = own + before[t.source][sent]
    return numbers


def is_right(operation: Operation, schedule: Schedule, before: Numbers, after: Numbers) -> bool:
    """Whether the numbers after a schedule are those that the operation demands."""
    n, each = schedule.ranks, schedule.chunks // schedule.ranks
    sums = [sum(column) for column in zip(*before, strict=True)]

    def own(rank: int) -> slice:
        return slice(rank * each, (rank + 1) * each)

    match operation:
        case "all_reduce":
            return all(chunks == sums for chunks in after)
        case "reduce":
            return after[0] == sums
        case "broadcast":
            return all(chunks == before[0] for chunks in after)
        case "reduce_scatter":
            return all(after[r][own(r)] == sums[own(r)] for r in range(n))
        case "scatter":
            return all(after[r][own(r)] == before[0][own(r)] for r in range(n))
        case "all_gather":
            return all(after[r][own(p)] == before[p][own(p)] for r in range(n) for p in range(n))
        case "gather":
            return all(after[0][own(p)] == before[p][own(p)] for p in range(n))
        case "all_to_all":
            return all(after[r][n + p] == before[p][r] for r in range(n) for p in range(n))
