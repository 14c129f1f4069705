"""`convoy net schedule`: who sends what to whom in an algorithm of a collective."""

import json
from collections.abc import Iterator

import click

from convoy.cli.options import JSON
from convoy.config.errors import ConfigError, must_be_one_of
from convoy.config.network import OPERATIONS, Operation
from convoy.display.formatting import plural
from convoy.network.collectives.algorithms import ALGORITHMS, Algorithm, algorithms_for
from convoy.network.collectives.check_schedule import cost
from convoy.network.collectives.schedule import Schedule, Transfer


@click.command()
@click.argument("operation", metavar="OP")
@click.option("--algorithm", required=True, help="Such as ring; an unknown name lists those that there are.")
@click.option("--ranks", type=click.IntRange(2), required=True, help="Ranks of the collective.")
@click.option("--ranks-per-host", "per_host", type=click.IntRange(1), default=1, show_default=True)
@JSON
def schedule(operation: str, algorithm: str, ranks: int, per_host: int, as_json: bool) -> None:
    """Print who sends which chunks of the buffer to whom in each round of the collective OP.

    A collective's buffer has the same number of equal chunks on every rank; docs/explanation/network.md says which of
    them a rank has before the first round and after the last.
    """
    if operation not in OPERATIONS:
        raise ConfigError(f"OP = {operation}: {must_be_one_of(operation, list(OPERATIONS))}")
    of: Operation = next(each for each in OPERATIONS if each == operation)
    found = _algorithm(of, algorithm, ranks, per_host).schedule(of, ranks, per_host)
    if as_json:
        click.echo(json.dumps(as_plain(found)))
        return
    takes = cost(of, found)
    click.echo(
        f"{operation} by {algorithm}, {ranks} ranks: {plural(takes.rounds, 'round')}, {plural(found.chunks, 'chunk')}; "
        f"a rank sends at most {takes.sent:.3g} × the buffer"
    )
    for number, each in enumerate(found.rounds):
        click.echo(f"round {number + 1}")
        for line in _lines(each):
            click.echo(f"  {line}")


def _algorithm(operation: Operation, name: str, ranks: int, per_host: int) -> Algorithm:
    """Raises ConfigError if there is none of that name, or for so many ranks."""
    named = [each.name for each in ALGORITHMS if operation in each.operations]
    if name not in named:
        raise ConfigError(f"--algorithm {name}: {must_be_one_of(name, named)}, for {operation}")
    for each in algorithms_for(operation, ranks, per_host):
        if each.name == name:
            return each
    raise ConfigError(
        f"--ranks {ranks}, --ranks-per-host {per_host}: {name} has no {operation} of so many; there are "
        f"{', '.join(each.name for each in algorithms_for(operation, ranks, per_host))}"
    )


def as_plain(schedule: Schedule) -> dict[str, object]:
    """The schedule as JSON has it. `to_chunks` is there only where chunks are stored under other numbers."""

    def transfer(each: Transfer) -> dict[str, object]:
        moved = {} if each.target_chunks is None else {"to_chunks": list(each.target_chunks)}
        return {"from": each.source, "to": each.target, "chunks": list(each.chunks), "op": each.op, **moved}

    rounds = [[transfer(each) for each in of_round] for of_round in schedule.rounds]
    return {"ranks": schedule.ranks, "chunks": schedule.chunks, "rounds": rounds}


def _lines(transfers: tuple[Transfer, ...]) -> Iterator[str]:
    for each in transfers:
        stored = "" if each.target_chunks is None else f" as {_numbers(each.target_chunks)}"
        if each.source == each.target:
            yield f"{each.source} keeps {_numbers(each.chunks)}{stored}"
        else:
            what = "added" if each.op == "add" else "copied"
            yield f"{each.source} → {each.target}: {_numbers(each.chunks)}{stored}, {what}"


def _numbers(chunks: tuple[int, ...]) -> str:
    """`chunk 3`, `chunks 0 to 3`, `chunks 1, 4, 6`."""
    if len(chunks) == 1:
        return f"chunk {chunks[0]}"
    if chunks == tuple(range(chunks[0], chunks[0] + len(chunks))):
        return f"chunks {chunks[0]} to {chunks[-1]}"
    return f"chunks {', '.join(map(str, chunks))}"
