"""`convoy plan`: what a run will need and take, and how far such a prediction can be trusted."""

from pathlib import Path
from typing import Any

import click

from convoy.cli import plan_inputs
from convoy.cli.groups import Lazy, LazyGroup
from convoy.cli.options import ENDPOINT, JSON, ROOT, print_result
from convoy.config.errors import ConfigError
from convoy.planner.pages.plan import plan_page
from convoy.planner.plan import plan as make_plan
from convoy.planner.workload import as_rented

COMMANDS = {
    "calibrate": Lazy("calibrate:calibrate", "Fit the constants to the measured runs of RESULTS."),
    "search": Lazy("plan_search:search", "Search machines for MODEL, a preset of configs/models."),
    "show": Lazy("plan:show", "Plan the run of CONFIG, a file or a preset of configs/train."),
    "validate": Lazy("plan:validate", "Compare predictions with the measured runs of FILE."),
}


class _ShowByDefault(LazyGroup):
    """Words that name no command are those of `show`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.lazy and args[0] not in ctx.help_option_names:
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_ShowByDefault, lazy=COMMANDS)
def plan() -> None:
    """What a run will need and take, before it starts: convoy plan CONFIG, short for convoy plan show CONFIG."""


@click.command()
@click.argument("config")
@click.option("--set", "words", multiple=True, metavar="KEY=VALUE", help="Override, as for a flow; may be repeated.")
@plan_inputs.measured_options
@ROOT
@ENDPOINT
@JSON
def show(
    config: str, words: tuple[str, ...], root: str | None, endpoint_url: str | None, as_json: bool, **options: Any
) -> None:
    """Plan the run of CONFIG, a file or a preset of configs/train: memory, time of a step, tokens/s, cost.

    Prices are the catalog's and those that `convoy prices refresh` left below the root; a root in a bucket is asked
    only where --root names it. What nobody measured is assumed, and said.
    """
    configured = plan_inputs.read_config(config, words)
    planned = as_rented(configured)
    prices = plan_inputs.price_book(root, planned.root, endpoint_url)
    refused = plan_inputs.refusals_of(configured, prices)
    measurements = plan_inputs.measurements(planned, options, prices)
    try:
        result = make_plan(planned, measurements).model_copy(update={"refused": refused})
    except ValueError as error:
        raise ConfigError(f"{config}: {error}") from None
    if planned != configured:
        note = f"{planned.cluster.instance_type} is rented; with cluster.backend = local a run computes on this host"
        result = result.model_copy(update={"assumed": (*result.assumed, note)})
    print_result(result, plan_page(result), as_json)


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@plan_inputs.CALIBRATION
@JSON
def validate(file: str, calibration: str | None, as_json: bool) -> None:
    """Compare predictions with the measured runs of FILE, a CSV file (docs/reference/plan-formats.md)."""
    from convoy.planner.pages.validation import validation_page
    from convoy.planner.validation.published import memory_of, published, read_measured
    from convoy.planner.validation.validate import validate  # brings numpy, which a plan does without

    constants, measured, references = plan_inputs.calibration_of(calibration), read_measured(Path(file)), published()
    try:
        result = validate(measured, references, constants, lambda row: memory_of(row).fits)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None
    print_result(result, validation_page(result, measured, constants), as_json)
