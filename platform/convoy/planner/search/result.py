"""The result of a search over machines, as `convoy plan search` prints it. docs/reference/plan-formats.md#search."""

from collections.abc import Sequence
from datetime import date

from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.model.counts import flops_per_token, mfu
from convoy.planner.config_keys import Keys
from convoy.planner.cost.cost_model import CostModel
from convoy.planner.cost.market_plans import MarketPlan, SpotPlan, plan_markets
from convoy.planner.plan_schema import PlanModel
from convoy.planner.search.search import FittingPlan
from convoy.planner.step.hardware import peak_rates

SCHEMA = 1
"""Raised when a key changes its meaning or goes away; new keys may come without it."""


class SearchRow(PlanModel):
    """The best way to train on so many machines of a type, in one market."""

    instance_type: str
    nodes: int
    market: str
    keys: Keys
    """What `--set` lays on `laid_on` to get this row: machines and market, how it trains there, how often it saves, and
    whatever else the search includes."""
    trained: Keys = {}
    """How it trains there, whatever it is laid on: the searched keys of `train`, those of `parallel` that differ from
    the defaults, and how often it saves."""
    step_seconds: float
    tokens_per_second: float
    """All ranks together, without saves."""
    mfu: float
    memory_share: float
    """Share of the memory that a GPU has for tensors."""
    hours: float
    """Until the last token, with saves and interruptions; on spot at the upper end of the interruption rates."""
    usd: float | None
    """Null: the price is not known."""
    least_usd: float | None
    """On spot: in the cheapest zone, at the lower end of the interruption rates."""
    most_usd: float | None
    """On spot: in the dearest zone, at the upper end."""
    usd_per_hour: float | None
    """Price of one machine."""
    price_date: date | None
    price_source: str | None
    stale: bool
    """The price is more than a year older than the newest one, and may no longer be available."""
    pareto: bool
    """Nothing else within the limits is both cheaper and faster. Rows with a stale price neither are nor prevent it."""
    within: bool
    """Within the limits of time and cost."""


class UnfitMachines(PlanModel):
    """Machines on which nothing fits reliably, or for which nothing can be planned."""

    instance_type: str
    nodes: int
    market: str | None = None
    """Null: in all markets."""
    why: str


class PlanSearch(PlanModel):
    """Rows by cost, cheapest first; then those with a stale price, by cost; those without a price last, by time."""

    schema_version: int = SCHEMA
    model: str
    parameters: int
    tokens: float
    sequence_length: int
    global_batch: int
    region: str
    max_usd: float | None
    max_hours: float | None
    laid_on: str = ""
    """File or preset of configs/train that the keys are laid on; empty: the configuration that was searched."""
    found: tuple[SearchRow, ...]
    unfit: tuple[UnfitMachines, ...]
    refused: tuple[str, ...] = ()
    """Why the configured backend does not run what was left out, each reason once."""
    no_spot: tuple[str, ...]
    """Types without a forecast on spot: their interruption rate is not known."""
    assumed: tuple[str, ...]
    """Assumptions in place of measurements, each with its value, day and source."""
    calibration: str
    """Day and data of the constants of the step's time."""


def search_row(plan: FittingPlan, costs: CostModel, keys: Keys) -> SearchRow:
    """The row of the configuration's market. Raises ValueError where the training would hardly ever end."""
    speed = plan.job.tokens_per_step / plan.time.total
    flops = flops_per_token(plan.job.model, plan.job.sequence_length)
    peak = peak_rates(plan.job.machine, plan.job.train.param_dtype).flops
    bought = _configured_market(costs)
    cost, spot = bought.cost, bought if isinstance(bought, SpotPlan) else None
    return SearchRow(
        instance_type=costs.instance,
        nodes=plan.job.nodes,
        market=bought.market,
        keys=keys,
        trained=_training_keys(plan, costs.config),
        step_seconds=plan.time.total,
        tokens_per_second=speed,
        mfu=mfu(speed / plan.job.ranks, flops, peak),
        memory_share=plan.memory.share,
        hours=bought.seconds / 3600,
        usd=cost.usd if cost else None,
        least_usd=spot.least_usd if spot else None,
        most_usd=spot.most_usd if spot else None,
        usd_per_hour=cost.usd_per_hour if cost else None,
        price_date=cost.price_date if cost else None,
        price_source=cost.source if cost else None,
        stale=bool(cost and cost.stale),
        pareto=False,
        within=True,
    )


def _configured_market(costs: CostModel) -> MarketPlan:
    budget = plan_markets(costs)
    bought = next((each for each in budget.markets if each.market == costs.config.cluster.market), None)
    if bought is None:
        raise ValueError(budget.why_no_spot)
    return bought


def _training_keys(plan: FittingPlan, config: RunConfig) -> Keys:
    train, default = plan.job.train, ParallelConfig()
    return {
        "train.micro_batch": train.micro_batch,
        "train.activation_checkpointing": train.activation_checkpointing,
        "train.compile": train.compile,
        **{
            f"parallel.{key}": value
            for key, value in plan.job.parallel.model_dump().items()
            if value != getattr(default, key)
        },
        "checkpoint.every_steps": config.checkpoint.every_steps,
    }


def mark_and_sort(rows: Sequence[SearchRow], max_usd: float | None, max_hours: float | None) -> list[SearchRow]:
    """In the order of `PlanSearch`, with the limits and the Pareto set marked."""

    def is_within(row: SearchRow) -> bool:
        is_cheap = max_usd is None or (row.usd is not None and row.usd <= max_usd)
        return is_cheap and (max_hours is None or row.hours <= max_hours)

    rivals = [row for row in rows if is_within(row) and row.usd is not None and not row.stale]
    marked = []
    for row in rows:
        pareto = row in rivals and not any(_beats(other, row) for other in rivals)
        marked.append(row.model_copy(update={"within": is_within(row), "pareto": pareto}))
    return sorted(marked, key=lambda row: (row.usd is None, row.stale, row.usd or row.hours))


def _beats(other: SearchRow, row: SearchRow) -> bool:
    assert other.usd is not None
    assert row.usd is not None
    no_worse = other.usd <= row.usd and other.hours <= row.hours
    return no_worse and (other.usd < row.usd or other.hours < row.hours)
