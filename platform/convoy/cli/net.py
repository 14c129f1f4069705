"""`convoy net`: measure the network of a gang, and find out what carried its traffic."""

import click

from convoy.cli.main import LazyCommand, PlainErrorGroup

COMMANDS: dict[str, LazyCommand] = {
    "bench": LazyCommand("net_bench:bench", "Measure collectives and pairs of ranks."),
    "counters": LazyCommand("net_counters:counters", "Run COMMAND, and report what this host's network carried."),
    "env": LazyCommand("net_env:env", "Check the environment variables of the network stack."),
    "export": LazyCommand("net_files:export", "Write a collective's case in nccl-tests' JSON format, version 3."),
    "import": LazyCommand("net_files:import_files", "Read results of other tools."),
    "log": LazyCommand("net_log:log", "Print what carried each rank's traffic between hosts."),
    "schedule": LazyCommand("net_schedule:schedule", "Print the messages of each round of a collective algorithm."),
}
"""Commands by name: the function, in a module `net_NAME` of this folder, and the first sentence of its help."""


@click.group(cls=PlainErrorGroup, lazy=COMMANDS)
def net() -> None:
    """Measure the network of a gang, and find out what carried its traffic."""
