"""`convoy plan`: what a run will need and take, and how far such a prediction can be trusted."""

from typing import Any

import click

from convoy.cli.calibrate import calibrate
from convoy.cli.options import ENDPOINT, ROOT
from convoy.cli.plan_inputs import CALIBRATION, calibration_of, given_measured, measured_options
from convoy.cli.plan_search import search


class _ShowByDefault(click.Group):
    """Words that name no command are those of `show`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowByDefault)
def plan() -> None:
    """What a run will need and take, before it starts: convoy plan CONFIG, short for convoy plan show CONFIG."""


plan.add_command(search)
plan.add_command(calibrate)


@plan.command()
@click.argument("config")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="As for a flow; may be repeated.")
@measured_options
@ROOT
@ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def show(
    config: str, words: tuple[str, ...], root: str | None, endpoint_url: str | None, as_json: bool, **measured: Any
) -> None:
    """Plan the run of CONFIG, a file or a preset of configs/train: memory, time of a step, tokens/s, cost.

    Prices are the catalog's and those that `convoy prices refresh` left below the root; a root in a bucket is asked
    only where --root names it. What nobody measured is assumed, and said.
    """
    from rich.console import Console

    from convoy.cli.plan_inputs import checked, host, price_book, read_config
    from convoy.config.errors import ConfigError
    from convoy.display.terminal import show
    from convoy.planner.pages.plan import plan_page
    from convoy.planner.plan import plan
    from convoy.planner.workload import as_rented

    asked = read_config(config, words)
    told = as_rented(asked)
    here = host(told)
    prices = price_book(root, told.root, endpoint_url)
    refused = checked(asked, prices)
    given = given_measured(told, measured, prices, here)
    try:
        found = plan(told, given).model_copy(update={"refused": refused})
    except ValueError as error:
        raise ConfigError(f"{config}: {error}") from None
    if told != asked:
        note = f"{told.cluster.instance_type} is rented; with cluster.backend = local a run computes on this host"
        found = found.model_copy(update={"assumed": (*found.assumed, note)})
    if as_json:
        click.echo(found.model_dump_json(indent=1))
    else:
        show(plan_page(found), Console())


@plan.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@CALIBRATION
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def validate(file: str, calibration: str | None, as_json: bool) -> None:
    """Compare predictions with the measured runs of FILE, a CSV file (docs/reference/plan-formats.md)."""
    from pathlib import Path

    from rich.console import Console

    from convoy.config.errors import ConfigError
    from convoy.display.terminal import show
    from convoy.planner.pages.validation import validation_page
    from convoy.planner.validation.published import memory_of, published, read_measured
    from convoy.planner.validation.validate import validate

    constants, measured, references = calibration_of(calibration), read_measured(Path(file)), published()
    try:
        found = validate(measured, references, constants, lambda row: memory_of(row).fits)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None
    if as_json:
        click.echo(found.model_dump_json(indent=1))
    else:
        show(validation_page(found, measured, constants), Console())
