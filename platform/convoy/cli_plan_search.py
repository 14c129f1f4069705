"""`convoy plan search`: the machines to train a model on, and how to train it there."""

import math
from typing import TYPE_CHECKING, Any

import click

from convoy.cli_places import ENDPOINT, ROOT

if TYPE_CHECKING:
    from convoy.config.run import RunConfig

TOKENS_OF_A_STEP = 2**22
"""Where nobody says how many: as many as 13B to 70B models are trained with (Touvron et al. 2023)."""

_POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command()
@click.argument("model")
@click.option("--instances", metavar="TYPE,…", help="Default: p4d.24xlarge,p5.48xlarge.")
@click.option("--nodes", metavar="N,…", help="Default: 1,2,4,8,16,32,64.")
@click.option("--max-usd", type=_POSITIVE, help="Show only what costs no more.")
@click.option("--max-hours", type=_POSITIVE, help="Show only what takes no longer.")
@click.option("--tokens", type=_POSITIVE, help="To train. Default: 20 a parameter, or as configured.")
@click.option("--sequence-length", type=click.IntRange(min=1), help="Default: the model's longest, or as configured.")
@click.option("--global-batch", type=click.IntRange(min=1), help="Sequences of a step. Default: 4 Mi tokens.")
@click.option("--region", help="Of the prices. Default: us-east-1, or as configured.")
@ROOT
@ENDPOINT
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def search(
    model: str,
    instances: str | None,
    nodes: str | None,
    max_usd: float | None,
    max_hours: float | None,
    root: str | None,
    endpoint_url: str | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Search machines for MODEL, a preset of configs/models, or a training configuration with its batch and tokens.

    For each number of machines of each type it finds the fastest way to train that fits in 90 % of a GPU's memory:
    strategy, micro batch, recomputation, wrap. What is shown is the cheapest and the fastest of these.
    """
    from rich.console import Console

    from convoy.cli_plan_config import known_prices
    from convoy.planner.given import Given
    from convoy.planner.market import INSTANCES, NODES, search
    from convoy.report.plan_search_page import search_page
    from convoy.report.terminal import show

    config = _asked(model, asked)
    given = Given(prices=known_prices(root, config.root, endpoint_url))
    types = instances.split(",") if instances else INSTANCES
    found = search(config, types, _counts(nodes) if nodes else NODES, max_usd, max_hours, given)
    if as_json:
        click.echo(found.model_dump_json(indent=1))
    else:
        show(search_page(found), Console())


def _counts(text: str) -> list[int]:
    from convoy.config.errors import ConfigError

    try:
        counts = [int(word) for word in text.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise ConfigError(f"--nodes {text}: must be numbers from 1 on, such as 2,4,8")
    return counts


def _asked(name: str, asked: dict[str, Any]) -> "RunConfig":
    """The configuration of which everything is kept that is not searched."""
    from convoy.cli_plan_config import read_config
    from convoy.config.load import configs_folder, resolve, with_preset
    from convoy.config.model import TransformerConfig
    from convoy.model.counts import parameter_count
    from convoy.planner.market import TOKENS_PER_PARAMETER

    tokens, batch = asked["tokens"], asked["global_batch"]
    if (configs_folder() / "models" / f"{name}.yaml").is_file():
        model = with_preset({"model": name})["model"]
        length = asked["sequence_length"] or model["max_sequence_length"]
        batch = batch or max(1, TOKENS_OF_A_STEP // length)
        config = resolve({"model": model, "data": {"sequence_length": length}, "train": {"compile": True}}, {})
        assert isinstance(config.model, TransformerConfig)
        tokens = tokens or TOKENS_PER_PARAMETER * parameter_count(config.model)
    else:
        words = [f"data.sequence_length={asked['sequence_length']}"] if asked["sequence_length"] else []
        config = read_config(name, words)
    batch = batch or config.train.global_batch
    update: dict[str, Any] = {"global_batch": batch}
    if tokens is not None:
        update["steps"] = math.ceil(tokens / (batch * config.data.sequence_length))
    cluster = config.cluster.model_copy(update={"region": asked["region"]} if asked["region"] else {})
    return config.model_copy(update={"train": config.train.model_copy(update=update), "cluster": cluster})
