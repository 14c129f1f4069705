"""`convoy net schedule`: the messages of each round of a collective algorithm."""

import json
from collections.abc import Iterator, Sequence

import click

from convoy.cli.options import JSON
from convoy.config.errors import ConfigError, must_be_one_of
from convoy.config.network import OPERATIONS, Operation
from convoy.display.formatting import plural
from convoy.network.collectives.algorithms import find_algorithm
from convoy.network.collectives.check_schedule import cost
from convoy.network.collectives.schedule import Schedule, TransferOp

MOST_RANKS = 512
"""Largest number of ranks: with more, the rounds of an all-to-all would take gigabytes."""

Message = tuple[int, int, tuple[int, ...], TransferOp]
"""Source, target, the numbers of the chunks that are sent, and what the target does with them."""


@click.command()
@click.argument("operation", metavar="OP")
@click.option("--algorithm", required=True, help="For example, ring; an unknown name lists the available ones.")
@click.option("--ranks", type=int, required=True, help=f"Ranks of the collective, 2 to {MOST_RANKS}.")
@click.option(
    "--ranks-per-host", "per_host", type=int, default=1, show_default=True, help="Ranks of each host; divides --ranks."
)
@JSON
def schedule(operation: str, algorithm: str, ranks: int, per_host: int, as_json: bool) -> None:
    """Print who sends which chunks of the buffer to whom in each round of the collective OP.

    A chunk has the same number on every rank; docs/explanation/network.md says which of them a rank has before the
    first round and after the last. Of an all-to-all, chunk i × ranks + k is what rank i has for rank k.
    """
    if operation not in OPERATIONS:
        raise ConfigError(f"OP = {operation}: {must_be_one_of(operation, list(OPERATIONS))}")
    of: Operation = next(each for each in OPERATIONS if each == operation)
    if not 2 <= ranks <= MOST_RANKS:
        raise ConfigError(f"--ranks {ranks}: must be from 2 to {MOST_RANKS}")
    if per_host < 1 or ranks % per_host:
        raise ConfigError(f"--ranks-per-host {per_host}: must divide --ranks, {ranks}")
    chosen = find_algorithm(algorithm, of, ranks, per_host)
    found = chosen.schedule(of, ranks, per_host)
    chunks, rounds = ranks**2 if of == "all_to_all" else found.chunks, messages(of, found)
    if as_json:
        click.echo(json.dumps({"ranks": ranks, "chunks": chunks, "rounds": _as_plain(rounds)}))
        return
    takes = cost(of, found)
    click.echo(
        f"{operation} by {chosen.name}, {ranks} ranks: {plural(takes.rounds, 'round')}, {plural(chunks, 'chunk')}; "
        f"a rank sends at most {takes.sent:.3g} × the buffer"
    )
    for number, each in enumerate(rounds):
        click.echo(f"round {number + 1}")
        for line in _lines(each):
            click.echo(f"  {line}")


def messages(operation: Operation, schedule: Schedule) -> list[list[Message]]:
    """The messages of each round, in which a chunk has the same number wherever it is. What moves within a rank is
    left out."""
    n = schedule.ranks
    if operation != "all_to_all":
        return [[(t.source, t.target, t.chunks, t.op) for t in each] for each in schedule.rounds]
    held, rounds = [[rank * n + target for target in range(n)] + [-1] * n for rank in range(n)], []
    for each in schedule.rounds:
        sent = [tuple(held[t.source][chunk] for chunk in t.chunks) for t in each]
        for t, numbers in zip(each, sent, strict=True):
            for stored, number in zip(t.stored, numbers, strict=True):
                held[t.target][stored] = number
        of_all = zip(each, sent, strict=True)
        rounds.append([(t.source, t.target, numbers, t.op) for t, numbers in of_all if t.source != t.target])
    return rounds


def _as_plain(rounds: Sequence[Sequence[Message]]) -> list[list[dict[str, object]]]:
    return [
        [{"from": source, "to": target, "chunks": chunks, "op": op} for source, target, chunks, op in each]
        for each in rounds
    ]


def _lines(transfers: Sequence[Message]) -> Iterator[str]:
    for source, target, chunks, op in transfers:
        yield f"{source} → {target}: {_numbers(chunks)}, {'added' if op == 'add' else 'copied'}"


def _numbers(chunks: tuple[int, ...]) -> str:
    """`chunk 3`, `chunks 0 to 3`, `chunks 1, 4, 6`."""
    if len(chunks) == 1:
        return f"chunk {chunks[0]}"
    if chunks == tuple(range(chunks[0], chunks[0] + len(chunks))):
        return f"chunks {chunks[0]} to {chunks[-1]}"
    return f"chunks {', '.join(map(str, chunks))}"
