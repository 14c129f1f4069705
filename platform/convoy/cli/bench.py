"""`convoy bench`: what benchmarks measured, over several of them."""

import click

from convoy.cli.main import LazyCommand, PlainErrorGroup

COMMANDS: dict[str, LazyCommand] = {
    "summary": LazyCommand("results:summary", "One page of several models: speed-up, memory, scaling, cost."),
}


@click.group(cls=PlainErrorGroup, lazy=COMMANDS)
def bench() -> None:
    """What benchmarks measured, over several of them."""
