"""`convoy drill`: put a fault into a real gang on this machine, and see what becomes of it."""

import json
import signal
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console

from convoy.cli.options import JSON
from convoy.config.errors import ConfigError
from convoy.drills import faults
from convoy.drills.fault import DrillOptions, GangSize
from convoy.drills.result import failure_notes, results_table
from convoy.drills.runner import DrillRunner

WIDTH = 110
"""The table's least width, so that no cell is cut."""


def _lasting(quote: str = "") -> str:
    """The drills that --seconds is for."""
    return " and ".join(sorted(f"{quote}{kind.name}{quote}" for kind in faults.DRILLS if kind.lasting))


@click.command()
@click.argument("name", required=False)
@click.option("--all", "every", is_flag=True, help="Every drill, one trial each unless --trials is given.")
@click.option("--nodes", type=click.IntRange(1), default=3, show_default=True, help="Agents, one process each.")
@click.option("--nproc", type=click.IntRange(1), default=1, show_default=True, help="Workers of each agent.")
@click.option("--trials", type=click.IntRange(1), default=None, help="Number of trials. Default: 3.")
@click.option("--seconds", type=click.FloatRange(1), default=None, help=f"Duration of {_lasting('`')}.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the random ranks, nodes and times.")
@click.option("--set", "words", default="", help="key=value overrides of the drills' job.")
@click.option("--keep", type=click.Path(file_okay=False), default=None, help="Keep the jobs in this new folder.")
@JSON
def drill(
    name: str | None,
    every: bool,
    nodes: int,
    nproc: int,
    trials: int | None,
    seconds: float | None,
    seed: int,
    words: str,
    keep: str | None,
    as_json: bool,
) -> None:
    """Train a small job on this machine with a real gang, inject the fault NAME, and report detection and recovery.

    Exit code 1 if any trial is not ok. Without NAME and --all, the drills are listed.
    """
    if name is None and not every:
        formatter = click.HelpFormatter()  # as wide as the terminal, 80 columns at most
        formatter.write_dl([(kind.name, kind.summary) for kind in faults.DRILLS])
        click.echo(formatter.getvalue(), nl=False)
        return
    if name is not None and every:
        raise ConfigError(f"drill {name} --all: give one of the two")
    kinds = list(faults.DRILLS) if name is None else [faults.drill_named("drill", name)]
    if seconds is not None and not any(kind.lasting for kind in kinds):
        raise ConfigError(f"--seconds {seconds:g}: drill {name} ends by itself; only {_lasting()} run for a given time")
    if keep is not None and Path(keep).exists():
        raise ConfigError(f"--keep {keep}: already exists; choose a new folder")
    plan = DrillOptions(
        size=GangSize(nodes, nproc),
        trials=trials or (1 if every else 3),
        seconds=seconds,
        seed=seed,
        keep=keep is not None,
        words=(words,) if words else (),
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was begun is undone: gangs, mounts, networks
    with tempfile.TemporaryDirectory(prefix="convoy-drill-") as temporary:
        folder = Path(keep or temporary).absolute()
        runner = DrillRunner(plan, folder, lambda line: click.echo(line, err=True), drills=len(kinds))
        results = [runner.run_drill(kind) for kind in kinds]
    if as_json:
        rows = [result.model_dump(mode="json") for result in results]
        click.echo(json.dumps(rows if every else rows[0], indent=1))
    else:
        console = Console()
        console.width = max(console.width, WIDTH)
        console.print(results_table(results))
        for line in failure_notes(results):
            console.print(line, highlight=False, markup=False)
    click.echo(runner.conditions(), err=True)
    sys.exit(1 if any(result.failed for result in results) else 0)
