"""`convoy net bench`: the network suite alone, on this host, in a lab, or as a rank of a launcher."""

import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import get_args

import click
from rich.console import Console

from convoy.benchmark.analysis.network import network_report
from convoy.benchmark.pages.network import network_page
from convoy.cli.options import JSON
from convoy.cli.results import read_results
from convoy.config.benchmark import BenchConfig, resolve_bench
from convoy.config.errors import ConfigError
from convoy.config.loader import Tree
from convoy.config.network import LINK_KINDS, OPERATIONS, NetworkDtype
from convoy.display.terminal import show
from convoy.network.launchers import LaunchedPlace, launched_place

WIDTH = 110
"""The table's least width, so that no cell is cut."""


@click.command()
@click.option("--ranks", type=click.IntRange(2), default=2, show_default=True, help="Ranks on this host.")
@click.option(
    "--op",
    "operations",
    multiple=True,
    help=f"{', '.join((*OPERATIONS, *LINK_KINDS))}; may be given again. Default: all_reduce and pairs.",
)
@click.option(
    "--sizes", default="8:64M:4", show_default=True, help="Bytes of the buffer: START:END or START:END:FACTOR."
)
@click.option("--dtype", default="fp32", show_default=True, help=f"Element type: {', '.join(get_args(NetworkDtype))}.")
@click.option("--rounds", type=click.IntRange(6), default=12, show_default=True, help="Blocks of each case and size.")
@click.option("--link-gbps", type=float, default=None, help="Rate of a host's network per direction, for the bound.")
@click.option(
    "--lab", default=None, metavar="SPEC", help='Hosts in namespaces, as "4 hosts, 400mbit, loss 0.1%"; needs root.'
)
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), help="Folder for the cases.")
@JSON
def bench(
    ranks: int,
    operations: tuple[str, ...],
    sizes: str,
    dtype: str,
    rounds: int,
    link_gbps: float | None,
    lab: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Measure collectives and pairs of ranks: on this host, in a lab of network namespaces, or, started by torchrun,
    srun or mpirun, as one rank on any hosts.

    Exit code 1 if an element was wrong, a bandwidth is above its bound, a port or link is slow, or a gang failed.
    """
    launched = launched_place(os.environ) if lab is None else None
    chosen = operations or ("all_reduce", "pairs")
    for name in chosen:
        if name not in (*OPERATIONS, *LINK_KINDS):
            raise ConfigError(f"--op {name}: must be one of {', '.join((*OPERATIONS, *LINK_KINDS))}")
    network = {
        "operations": [name for name in chosen if name not in LINK_KINDS],
        "links": [name for name in chosen if name in LINK_KINDS],
        "sizes": sizes,
        "dtype": dtype,
        "link_gbps": link_gbps,
    }
    tree: Tree = {
        "suites": ["network"],
        "measure": {"rounds": rounds},
        "network": network,
        "run": {"cluster": {"backend": "local", "nodes": ranks}},
    }
    config = resolve_bench(tree, {})
    if output is not None and any(output.glob("*.json")):
        raise ConfigError(f"--output {output}: holds results already; choose another folder")
    with tempfile.TemporaryDirectory(prefix="convoy-net-") as temporary:
        folder = output or Path(temporary) / "cases"
        failures = _measure(config, lab, launched, folder)
        if launched is not None and launched.rank > 0:
            return
        cases = read_results(folder) if any(folder.glob("*.json")) else []
        report = network_report(cases)
    if as_json:
        click.echo("{}" if report is None else report.model_dump_json(indent=1))
    else:
        console = Console()
        console.width = max(console.width, WIDTH)
        show(network_page(report), console)
    for failure in failures:
        click.echo(f"convoy: {failure}", err=True)
    sys.exit(1 if failures or report is None or report.is_wrong else 0)


def _measure(config: BenchConfig, lab: str | None, launched: LaunchedPlace | None, folder: Path) -> list[str]:
    """Write the cases into the folder; returns what failed."""
    command = shlex.join(["convoy", *sys.argv[1:]])
    if launched is not None:
        if launched.ranks < 2:
            raise ConfigError("the launcher started 1 rank: must be 2 or more")
        from convoy.benchmark.measure.network_ranks import measure_as_rank
        from convoy.benchmark.plan import network_groups

        groups = network_groups(config, launched.ranks, launched.local_ranks, command)
        measure_as_rank(groups, launched, folder, _say)
        return []
    if lab is not None:
        from convoy.launch.benchmark.network_lab import measure_in_lab

        return measure_in_lab(config, lab, folder, _say, command)
    from convoy.launch.benchmark.groups import run_here

    ran = run_here(config, folder, _say, command)
    return [f"{each.group.name}: {each.failure}" for each in ran if each.failure]


def _say(line: str) -> None:
    click.echo(line, err=True)
