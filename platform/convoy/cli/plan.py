"""`convoy plan`: what a run will need and take, and how far such a prediction can be trusted."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from convoy.catalog.instances import instance, instance_names
from convoy.cli import plan_inputs
from convoy.cli.main import LazyCommand, LazyGroup
from convoy.cli.options import ENDPOINT, JSON, ROOT, print_result
from convoy.config.cluster import Market
from convoy.config.errors import ConfigError, name_hint
from convoy.config.loader import configs_folder, expand_preset
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.model.counts import parameter_count
from convoy.planner.measurements import Measurements
from convoy.planner.pages.plan import plan_page
from convoy.planner.pages.search import search_page
from convoy.planner.plan import plan as make_plan
from convoy.planner.search.market import (
    INSTANCES,
    MARKETS,
    NODES,
    SEARCHED,
    TOKENS_PER_PARAMETER,
    SearchBase,
    search_machines,
)
from convoy.planner.workload import as_rented

COMMANDS = {
    "calibrate": LazyCommand("results:calibrate", "Fit the constants to the measured runs of RESULTS."),
    "search": LazyCommand("plan:search", "Search machines for MODEL, a preset of configs/models."),
    "show": LazyCommand("plan:show", "Plan the run of CONFIG, a file or a preset of configs/train."),
    "validate": LazyCommand("plan:validate", "Compare predictions with the measured runs of FILE."),
}

ALONE = "default"
"""Preset of configs/train that a model alone is laid on, as a flow lays keys on it where nobody names another."""

TOKENS_OF_A_STEP = 2**22
"""Where nobody says how many: as many as 13B to 70B models are trained with (Touvron et al. 2023)."""


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
@plan_inputs.with_measured_options
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
    prices = plan_inputs.read_price_book(root, planned.root, endpoint_url)
    refused = plan_inputs.refusals_of(configured, prices)
    measurements = plan_inputs.read_measurements(planned, options, prices)
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
    from convoy.planner.validation.published import published_runs, read_measured
    from convoy.planner.validation.validate import validate  # brings numpy, which a plan does without

    constants, measured = plan_inputs.calibration_at(calibration), read_measured(Path(file))
    try:
        result = validate(measured, published_runs(), constants)
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from None
    print_result(result, validation_page(result, measured, constants), as_json)


class _PositiveNumber(click.ParamType[float]):
    """A number of more than 0, as people write large ones: 1B, 300 B, 1.5T, 10k, 1e12."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(r"([\d.,_]+(?:e\d+)?)\s*([kmbt]?)", str(value).strip().lower())
        try:
            assert match is not None
            amount = float(re.sub(r"[,_]", "", match[1])) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}[match[2]]
        except (AssertionError, ValueError):
            amount = 0.0
        if not amount > 0:
            self.fail(f"{value}: must be a number of more than 0, such as 10000, 10k or 1.5T", param, ctx)
        return amount


_AMOUNT = _PositiveNumber()


@click.command()
@click.argument("model")
@click.option("--instances", metavar="TYPE,…", help="Such as p5, the largest of its family. Default: p4d,p5.")
@click.option("--nodes", metavar="N,…", help="Default: 1,2,4,8,16,32,64.")
@click.option(
    "--market",
    multiple=True,
    metavar="MARKET,…",
    help="on-demand, spot, capacity-block, reserved. Default: all but the last.",
)
@click.option("--max-usd", type=_AMOUNT, help="Show only plans up to this cost.")
@click.option("--max-hours", type=_AMOUNT, help="Show only plans up to this duration.")
@click.option("--tokens", type=_AMOUNT, help="Tokens to train on, such as 300B. Default: 20 per parameter.")
@click.option("--sequence-length", type=click.IntRange(min=1), help="Default: the model's longest, or as configured.")
@click.option("--global-batch", type=click.IntRange(min=1), help="Sequences per step. Default: 4 Mi tokens.")
@click.option("--region", help="Region of the prices. Default: us-east-1, or as configured.")
@plan_inputs.CALIBRATION
@plan_inputs.RESULTS
@plan_inputs.REPLACEMENT
@plan_inputs.WRITES
@ROOT
@ENDPOINT
@JSON
def search(model: str, root: str | None, endpoint_url: str | None, as_json: bool, **options: Any) -> None:
    """Search machines for MODEL, a preset of configs/models, or a training configuration with its batch and tokens.

    For each number of machines of each type it finds the fastest way to train that fits in 90 % of a GPU's memory:
    strategy, micro batch, recomputation, wrap. The cheapest and the fastest of these are shown.
    """
    config, base = _workload(model, options)
    own = Measurements(
        calibration=plan_inputs.calibration_at(options["calibration"]),
        replacement_seconds=options["replacement_seconds"],
        node_bytes_per_second=options["write_gb_per_second"] and options["write_gb_per_second"] * 1e9,
        prices=plan_inputs.read_price_book(root, config.root, endpoint_url),
    )
    types = [_largest_instance(word) for word in options["instances"].split(",")] if options["instances"] else INSTANCES
    counts = _parse_node_counts(options["nodes"]) if options["nodes"] else NODES
    add_results, markets = plan_inputs.results_adder(options["results"]), _parse_markets(options["market"])
    limits = options["max_usd"], options["max_hours"]
    result = search_machines(config, types, counts, *limits, own, add_results, markets=markets, base=base)
    print_result(result, search_page(result), as_json)


def _largest_instance(word: str) -> str:
    """`p5` is p5.48xlarge: of a family the one with most GPUs. What is no family is judged by the search."""
    family = [instance(name) for name in instance_names() if name.split(".")[0] == word.strip().lower()]
    return max(family, key=lambda each: (each.gpus, each.vcpus)).name if family else word.strip()


def _parse_node_counts(text: str) -> list[int]:
    try:
        counts = [int(word) for word in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise ConfigError(f"--nodes {text}: must be numbers from 1 on, such as 2,4,8")
    return counts


def _parse_markets(words: Sequence[str]) -> Sequence[Market]:
    """The markets that `--market` names; those that are searched by default, where it names none."""
    names = [word.strip() for each in words for word in each.split(",")]
    for name in names:
        if name.replace("-", "_") not in MARKETS:
            markets = ", ".join(market.replace("_", "-") for market in MARKETS)
            raise ConfigError(f"--market {name}: must be one of {markets}")
    return [market for market in MARKETS if market in (name.replace("-", "_") for name in names)] or SEARCHED


def _check_config_exists(name: str) -> None:
    """Raises ConfigError for what is neither a model nor a training configuration."""
    models, runs = (
        sorted(each.stem for each in (configs_folder() / kind).glob("*.yaml")) for kind in ("models", "train")
    )
    if not Path(name).is_file() and name not in runs:
        alike = [each for each in models if name.lower() in each] or models
        places = "no such file, and no preset of configs/models or configs/train"
        raise ConfigError(f"{name}: {places}; {name_hint(name, alike)}")


def _workload(name: str, options: dict[str, Any]) -> tuple[RunConfig, SearchBase]:
    """The configuration that is searched from, and what its keys are laid over: for a model alone, the default
    configuration. Raises ConfigError."""
    tokens, batch, length = options["tokens"], options["global_batch"], options["sequence_length"]
    file, words = name, [f"data.sequence_length={length}"] if length else []
    if (configs_folder() / "models" / f"{name}.yaml").is_file():
        length = length or expand_preset({"model": name})["model"]["max_sequence_length"]
        file, words = ALONE, [f"model={name}", f"data.sequence_length={length}", "train.compile=true"]
        batch = batch or max(1, TOKENS_OF_A_STEP // length)
    else:
        _check_config_exists(name)
    config = plan_inputs.read_config(file, words)
    if file != name and tokens is None and isinstance(config.model, TransformerConfig):
        tokens = TOKENS_PER_PARAMETER * parameter_count(config.model)
    batch = batch or config.train.global_batch
    train: dict[str, Any] = {"global_batch": batch}
    if tokens is not None:
        train["steps"] = math.ceil(tokens / (batch * config.data.sequence_length))
    cluster = {"region": options["region"]} if options["region"] else {}
    config = config.model_copy(
        update={"train": config.train.model_copy(update=train), "cluster": config.cluster.model_copy(update=cluster)}
    )
    return config, SearchBase(file, plan_inputs.read_config(file))
