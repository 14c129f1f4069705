"""The result of a search over machines, as `convoy plan search` prints it. docs/reference/plan-formats.md#search."""

from collections.abc import Iterator, Sequence
from datetime import date

from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.display import formatting
from convoy.model.counts import flops_per_token, mfu
from convoy.planner.config_keys import Keys
from convoy.planner.cost.budget import MarketPlan, SpotPlan, planned_budget
from convoy.planner.cost.campaign import Course
from convoy.planner.plan_schema import Planned
from convoy.planner.search.search import Way
from convoy.planner.step.hardware import hardware

SCHEMA = 1
"""Raised when a key changes its meaning or goes away; new keys may come without it."""


class SearchRow(Planned):
    """The best way to train on so many machines of a type, in one market."""

    instance_type: str
    nodes: int
    market: str
    keys: Keys
    """What `--set` lays on `laid_on` to get this row: machines and market, how it trains there, how often it saves, and
    whatever else the search was asked for."""
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


class Unfit(Planned):
    """Machines on which nothing fits reliably, or for which nothing can be planned."""

    instance_type: str
    nodes: int
    market: str | None = None
    """Null: in all markets."""
    why: str


class PlanSearch(Planned):
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
    unfit: tuple[Unfit, ...]
    refused: tuple[str, ...] = ()
    """Why the configured backend does not run what was left out, each reason once."""
    loosen: tuple[str, ...]
    """Where nothing is within the limits: how far each would have to go while the other stays."""
    no_spot: tuple[str, ...]
    """Types without a forecast on spot: their interruption rate is not known."""
    assumed: tuple[str, ...]
    """Assumptions in place of measurements, each with its value, day and source."""
    calibration: str
    """Day and data of the constants of the step's time."""


def search_row(way: Way, course: Course, keys: Keys) -> SearchRow:
    """The row of the configuration's market. Raises ValueError where the training would hardly ever end."""
    speed = way.job.tokens_per_step / way.time.total
    flops = flops_per_token(way.job.model, way.job.sequence_length)
    peak = hardware(way.job.machine, way.job.train.param_dtype).flops
    bought = _bought(course)
    cost, spot = bought.cost, bought if isinstance(bought, SpotPlan) else None
    return SearchRow(
        instance_type=course.instance,
        nodes=way.job.nodes,
        market=bought.market,
        keys=keys,
        trained=_training_keys(way, course.config),
        step_seconds=way.time.total,
        tokens_per_second=speed,
        mfu=mfu(speed / way.job.ranks, flops, peak),
        memory_share=way.memory.share,
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


def _bought(course: Course) -> MarketPlan:
    budget = planned_budget(course)
    bought = next((each for each in budget.markets if each.market == course.config.cluster.market), None)
    if bought is None:
        raise ValueError(budget.why_no_spot)
    return bought


def _training_keys(way: Way, config: RunConfig) -> Keys:
    train, default = way.job.train, ParallelConfig()
    return {
        "train.micro_batch": train.micro_batch,
        "train.activation_checkpointing": train.activation_checkpointing,
        "train.compile": train.compile,
        **{
            f"parallel.{key}": value
            for key, value in way.job.parallel.model_dump().items()
            if value != getattr(default, key)
        },
        "checkpoint.every_steps": config.checkpoint.every_steps,
    }


def ranked(rows: Sequence[SearchRow], max_usd: float | None, max_hours: float | None) -> list[SearchRow]:
    """In the order of `PlanSearch`, with the limits and the Pareto set marked."""
    marked = [row.model_copy(update={"within": _within(row, max_usd, max_hours)}) for row in rows]
    rivals = [row for row in marked if row.within and row.usd is not None and not row.stale]
    return sorted(
        (
            row.model_copy(update={"pareto": row in rivals and not any(_beats(other, row) for other in rivals)})
            for row in marked
        ),
        key=lambda row: (row.usd is None, row.stale, row.usd or row.hours),
    )


def loosened(rows: Sequence[SearchRow], max_usd: float | None, max_hours: float | None) -> Iterator[str]:
    """Where nothing is within the limits: how far each would have to go, by prices that are not stale if there are any.
    rows: from `ranked`."""
    if not rows or any(row.within for row in rows):
        return
    rows = [row for row in rows if not row.stale] or rows
    quick = [row for row in rows if _within(row, None, max_hours) and row.usd is not None]
    cheap = [row for row in rows if _within(row, max_usd, None)]
    if max_usd is not None and quick:
        cheapest = min(quick, key=lambda row: row.usd or 0.0)
        yield f"--max-usd {max_usd:,.0f}: must be at least {cheapest.usd:,.0f}, for {_summary(cheapest)}"
    if max_hours is not None and cheap:
        fastest = min(cheap, key=lambda row: row.hours)
        yield f"--max-hours {max_hours:,.0f}: must be at least {fastest.hours:,.1f}, for {_summary(fastest)}"
    if quick or cheap:
        return
    priced = [row for row in rows if row.usd is not None]
    if priced:
        yield f"the cheapest of all is {_summary(min(priced, key=lambda row: row.usd or 0.0))}"
    else:
        yield "no price of these machines is known in this region"
    fastest = min(rows, key=lambda row: row.hours)
    yield f"the fastest of all is {_summary(fastest)}; more machines (--nodes) may be faster"


def _summary(row: SearchRow) -> str:
    cost = "" if row.usd is None else f" and {row.usd:,.0f} USD"
    market = row.market.replace("_", " ")
    return f"{row.nodes} × {row.instance_type}, {market}: {formatting.long_duration(3600 * row.hours)}{cost}"


def _within(row: SearchRow, max_usd: float | None, max_hours: float | None) -> bool:
    cheap = max_usd is None or (row.usd is not None and row.usd <= max_usd)
    return cheap and (max_hours is None or row.hours <= max_hours)


def _beats(other: SearchRow, row: SearchRow) -> bool:
    assert other.usd is not None
    assert row.usd is not None
    no_worse = other.usd <= row.usd and other.hours <= row.hours
    return no_worse and (other.usd < row.usd or other.hours < row.hours)
