"""`convoy net env`: environment variables that are harmful, obsolete or missing for given versions and a machine."""

import os
import sys
from pathlib import Path

import click
from pydantic import ValidationError

from convoy.cli.options import JSON, print_result
from convoy.config.errors import ConfigError, first_mistake
from convoy.network.pages.variables import variables_page
from convoy.network.variables import Stack, check_variables, parse_environment


@click.command()
@click.option("--env", "file", type=click.Path(path_type=Path), default=None, metavar="FILE",
              help="Check a file of NAME=VALUE or export lines. Default: the environment of this process.")  # fmt: skip
@click.option("--nccl", default=None, metavar="VERSION", help="Version of NCCL, e.g. 2.27.7.")
@click.option("--ofi", default=None, metavar="VERSION", help="Version of aws-ofi-nccl, e.g. 1.16.3.")
@click.option("--libfabric", default=None, metavar="VERSION", help="Version of libfabric, e.g. 2.1.0.")
@click.option("--instance", default=None, metavar="TYPE", help="EC2 type of the machine, e.g. p5.48xlarge.")
@JSON
def env(
    file: Path | None, nccl: str | None, ofi: str | None, libfabric: str | None, instance: str | None, as_json: bool
) -> None:
    """Check the environment variables of the network stack: NCCL, its EFA plugin, libfabric, gloo and PyTorch.

    Lists what is harmful, missing or obsolete, and NCCL variables that NCCL does not read, each with the reason and its
    source. What depends on a version or machine that was not given is listed as such. Exit code 1 if something is
    harmful.
    """
    try:
        stack = Stack(nccl=nccl, ofi=ofi, libfabric=libfabric, instance=instance)
    except ValidationError as error:
        key, _, text = first_mistake(error).partition(": ")
        raise ConfigError(f"--{key} {text}") from None
    environ = os.environ if file is None else parse_environment(_read(file), f"--env {file}")
    report = check_variables(environ, stack)
    print_result(report, variables_page(report), as_json)
    sys.exit(int(report.harmful))


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError as error:
        raise ConfigError(f"--env {file}: cannot be read: {error.strerror}") from None
