"""`convoy net log`: the network that carried a run's traffic, by NCCL's log."""

import sys
from pathlib import Path
from typing import get_args

import click

from convoy.cli.options import JSON, print_result
from convoy.config.cluster import NetworkRequirement
from convoy.network.nccl.log import read_files
from convoy.network.nccl.verdict import judge
from convoy.network.pages.nccl import log_page, rank_list


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option(
    "--require",
    type=click.Choice(get_args(NetworkRequirement)),
    default=None,
    help="Exit with 1 unless the log proves this for every rank: RDMA over EFA, any RDMA, RDMA with GPUDirect.",
)
@JSON
def log(files: tuple[Path, ...], require: NetworkRequirement | None, as_json: bool) -> None:
    """Print what carried each rank's traffic between hosts, by the INFO lines of NCCL in FILE...

    The files hold the output of one run's ranks with NCCL_DEBUG=INFO, mixed or one by one. Verdicts are rdma+gdr, rdma,
    tcp, harmless (nothing crosses hosts) and unknown; RDMA is reported only where channels used it. Where it could be
    better, the first cause and its fix follow.
    """
    report = judge(read_files(files))
    print_result(report, log_page(report), as_json)
    short = [each for each in report.ranks if require and not each.meets(require)]
    if short:
        click.echo(
            f"convoy: --require {require}: not proven for rank{'' if len(short) == 1 else 's'} {rank_list(short)}",
            err=True,
        )
    sys.exit(int(bool(short)))
