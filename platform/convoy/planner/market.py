"""The best machines to train a model on: each with the best way to train on it, in each market, by cost and by time."""

from collections.abc import Iterator, Sequence
from typing import Any

from convoy.catalog.instances import instance
from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.model.counts import parameter_count
from convoy.planner.calibration import shipped
from convoy.planner.campaign import Course, planned_budget
from convoy.planner.given import Given
from convoy.planner.hardware import hardware
from convoy.planner.interval import best_save_interval, in_steps
from convoy.planner.machine import machine_of
from convoy.planner.search import Search, Task, Way
from convoy.planner.utilisation import mfu
from convoy.results.plan import Keys, PlannedMarket, PlannedSpot
from convoy.results.plan_search import Found, PlanSearch, Unfit

INSTANCES = ("p4d.24xlarge", "p5.48xlarge")
"""Looked at unless others are named."""

NODES = (1, 2, 4, 8, 16, 32, 64)

TOKENS_PER_PARAMETER = 20
"""Where nobody says how many: Hoffmann et al. 2022."""


def search(
    config: RunConfig,
    instances: Sequence[str] = INSTANCES,
    nodes: Sequence[int] = NODES,
    max_usd: float | None = None,
    max_hours: float | None = None,
    given: Given | None = None,
) -> PlanSearch:
    """For the model, batch, tokens and types of `config`; its parallelism, micro batch and recomputation are searched,
    and it saves as often as is best. Raises ConfigError for a custom model, and for a type that the catalog does not
    have."""
    model, given = config.model, given or Given()
    if not isinstance(model, TransformerConfig):
        raise ConfigError(f"model.build = {model.build}: nothing is known of it, so nothing is planned")
    task = Task(model, config.data.sequence_length, config.train, config.optimizer.fused)
    searching = Search(task, given.calibration or shipped())
    rows: list[Found] = []
    unfit: list[Unfit] = []
    for name in instances:
        instance(name)  # a wrong name is told before anything is searched
    for name in instances:
        for count in nodes:
            try:
                rows += _on(config, name, count, searching, given)
            except ValueError as error:
                unfit.append(Unfit(instance_type=name, nodes=count, why=str(error)))
    return PlanSearch(
        model=model.name,
        parameters=parameter_count(model),
        tokens=float(config.train.steps * config.train.global_batch * config.data.sequence_length),
        sequence_length=config.data.sequence_length,
        global_batch=config.train.global_batch,
        region=config.cluster.region,
        max_usd=max_usd,
        max_hours=max_hours,
        found=tuple(ranked(rows, max_usd, max_hours)),
        unfit=tuple(unfit),
    )


def recommended(config: RunConfig, searching: Search) -> Way | None:
    """The best way to train it on its own machines."""
    return searching.best(machine_of(config), config.cluster.nodes)


def ranked(rows: Sequence[Found], max_usd: float | None, max_hours: float | None) -> list[Found]:
    """By cost, with the limits and the Pareto set marked: those of which nothing else within the limits is cheaper and
    as fast, or faster and as cheap."""
    marked = [row.model_copy(update={"within": _within(row, max_usd, max_hours)}) for row in rows]
    rivals = [row for row in marked if row.within and row.usd is not None]
    return sorted(
        (
            row.model_copy(update={"pareto": row in rivals and not any(_better(other, row) for other in rivals)})
            for row in marked
        ),
        key=lambda row: (row.usd is None, row.usd or row.hours),
    )


def _better(other: Found, row: Found) -> bool:
    assert other.usd is not None
    assert row.usd is not None
    no_worse = other.usd <= row.usd and other.hours <= row.hours
    return no_worse and (other.usd < row.usd or other.hours < row.hours)


def _within(row: Found, max_usd: float | None, max_hours: float | None) -> bool:
    cheap = max_usd is None or (row.usd is not None and row.usd <= max_usd)
    return cheap and (max_hours is None or row.hours <= max_hours)


def _on(config: RunConfig, name: str, nodes: int, searching: Search, given: Given) -> Iterator[Found]:
    """In each market. Raises ValueError where nothing fits, or nothing can be told."""
    own = config.cluster.price if name == config.cluster.instance_type else None
    update = {"instance_type": name, "nodes": nodes, "nproc_per_node": None, "price": own}
    there = config.model_copy(update={"cluster": config.cluster.model_copy(update=update)})
    way = recommended(there, searching)
    if way is None:
        raise ValueError(_why_nothing(config.train.global_batch, nodes * machine_of(there).ranks))
    course = _saved_best(Course(there, way.job, way.time.total, given))
    budget = planned_budget(course)
    speed = way.job.tokens_per_step / way.time.total
    peak = hardware(way.job.machine, way.job.train.param_dtype).flops
    known = {
        "instance_type": name,
        "nodes": nodes,
        "keys": keys_of(way),
        "step_seconds": way.time.total,
        "tokens_per_second": speed,
        "mfu": mfu(way.job, speed / way.job.ranks, peak),
        "memory_share": way.memory.share,
        "pareto": False,
        "within": True,
    }
    for market in (*budget.steady, *([budget.spot] if budget.spot else [])):
        yield Found(**known, **_paid(market))


def _why_nothing(global_batch: int, ranks: int) -> str:
    if global_batch % ranks:
        return f"a global batch of {global_batch} sequences cannot be shared out evenly over {ranks} ranks"
    return "nothing fits in 90 % of a GPU's memory"


def _paid(market: PlannedMarket) -> dict[str, Any]:
    return {
        "market": market.market,
        "hours": market.seconds / 3600,
        "usd": market.cost.usd if market.cost else None,
        "least_usd": market.least_usd if isinstance(market, PlannedSpot) else None,
        "most_usd": market.most_usd if isinstance(market, PlannedSpot) else None,
    }


def _saved_best(course: Course) -> Course:
    """The same, saved as often as is best where machines are taken away."""
    best = best_save_interval(course.spot or course.steady, course.saving)
    every = in_steps(min(best, course.work_seconds), course.step_seconds)
    checkpoint = course.config.checkpoint.model_copy(update={"every_steps": every})
    config = course.config.model_copy(update={"checkpoint": checkpoint})
    return Course(config, course.job, course.step_seconds, course.given)


def keys_of(way: Way) -> Keys:
    """What differs from the defaults of `parallel`, and what is searched of `train`."""
    plain, train = ParallelConfig(), way.job.train
    own = way.job.parallel.model_dump()
    told = {f"parallel.{key}": value for key, value in own.items() if value != getattr(plain, key)}
    return {
        "train.micro_batch": train.micro_batch,
        "train.activation_checkpointing": train.activation_checkpointing,
        "train.compile": train.compile,
        **told,
    }
