"""`convoy infra`: between a Terraform stack of `infra/`, a configuration and the account."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from botocore.exceptions import BotoCoreError, ClientError

from convoy.catalog.aws_prices import boto3_client
from convoy.cli.options import JSON
from convoy.config.errors import ConfigError, one_line, printable
from convoy.config.run import RunConfig
from convoy.infra.account import check_credentials
from convoy.infra.batch import BatchAccount
from convoy.infra.check import NO_TUNNEL, check_account, open_account, skipped
from convoy.infra.connect import check_output, connect, next_command, parse_config_text, read_config_text
from convoy.infra.findings import Finding
from convoy.infra.kubernetes_account import KubernetesAccount
from convoy.infra.left import find_leftovers, total
from convoy.infra.profile import check_profile, profile_path, read_settings, settings_with, write_profile
from convoy.infra.stack import read_stack
from convoy.launch.checks.preflight import check_extra


@click.group()
def infra() -> None:
    """Connect a stack with a configuration, check the account, list what is left."""


@infra.command("connect")
@click.argument("stack_folder", metavar="STACK", type=click.Path(path_type=Path))
@click.argument("preset")
@click.option("--output", required=True, type=click.Path(dir_okay=False, path_type=Path), help="The file to write.")
def connect_command(stack_folder: Path, preset: str, output: Path) -> None:
    """Write PRESET with the values of STACK to a file, and Metaflow's profile; then check the account.

    STACK is the folder of a Terraform stack that is applied, PRESET a configuration of its backend. The profile has the
    name of the stack. Neither file is overwritten if it has other content. Exit codes are those of `check`.
    """
    stack = read_stack(stack_folder)
    text = connect(read_config_text(preset), stack)
    configured = parse_config_text(str(output), text)
    path = profile_path(stack.stack, os.environ)
    check_profile(path, stack.metaflow, stack.stack)
    check_output(output, text)
    tunnel = stack.launcher.tunnel_command if stack.launcher else NO_TUNNEL
    settings = settings_with(stack.metaflow, os.environ)
    check_extra(configured.config)
    account = open_account(configured.config, settings, boto3_client, _default_region(), stack.account, tunnel)
    write_profile(path, stack.metaflow)
    try:
        output.write_text(text)
    except OSError as error:
        raise ConfigError(f"--output {output}: cannot be written: {error.strerror}") from None
    click.echo(f"wrote {path} and {output}")
    findings = _check(account)
    _print_findings(account, findings)
    click.echo(f"next: {next_command(configured.kind, output, stack.stack)}")
    sys.exit(_exit_code(findings))


@infra.command()
@click.argument("config")
@JSON
def check(config: str, as_json: bool) -> None:
    """Check whether the account has what CONFIG needs.

    Metaflow's settings are those of METAFLOW_PROFILE. Prints one line for each thing that was checked: what was seen,
    and if that is not right, what is wanted and how to fix it. Exit code 0 if nothing is missing, 1 if something is.
    """
    configured: RunConfig = read_config_text(config).config
    check_extra(configured)
    account = open_account(configured, read_settings(os.environ), boto3_client, _default_region())
    findings = _check(account)
    if as_json:
        click.echo(json.dumps([finding.model_dump() for finding in findings], indent=1))
    else:
        _print_findings(account, findings)
    sys.exit(_exit_code(findings))


@infra.command()
@click.argument("name")
@click.option("--region", default=None, help="Default: that of AWS's clients.")
def left(name: str, region: str | None) -> None:
    """List what still runs or costs money in stack NAME, by the tag convoy:stack, in US dollars per hour where known.

    Exit code 0 if nothing is left, 1 if something is.
    """
    region = region or _default_region()
    if region is None:
        raise ConfigError("--region: required, because AWS's clients have no default region")
    check_credentials(boto3_client, region)
    try:
        leftovers = find_leftovers(name, region, boto3_client)
    except (BotoCoreError, ClientError) as error:
        raise ConfigError(f"AWS: {one_line(error)}") from None
    for each in leftovers:
        click.echo(printable(each.line()))
    click.echo(total(leftovers) if leftovers else f"nothing is left of {name} in {region}")
    sys.exit(1 if leftovers else 0)


def _default_region() -> str | None:
    import boto3

    try:
        region: str | None = boto3.session.Session().region_name
    except BotoCoreError as error:
        raise ConfigError(f"AWS: {one_line(error)}") from None
    return region


def _check(account: BatchAccount | KubernetesAccount) -> list[Finding]:
    try:
        return check_account(account)
    except BotoCoreError as error:
        raise ConfigError(f"AWS: {one_line(error)}") from None


def _print_findings(account: BatchAccount | KubernetesAccount, findings: Sequence[Finding]) -> None:
    for finding in findings:
        click.echo(finding.line())
    numbers = [f"{sum(each.status == status for each in findings)} {status}" for status in ("ok", "missing", "warning")]
    if unmade := skipped(account, list(findings)):
        numbers.append(f"{unmade} not checked, because they depend on something missing")
    click.echo(", ".join(numbers))


def _exit_code(findings: Sequence[Finding]) -> int:
    return 1 if any(finding.status == "missing" for finding in findings) else 0
