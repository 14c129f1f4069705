"""The best machines to train a model on: each with the best way to train on it, in each market, by cost and by time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from convoy.catalog.instances import instance
from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.model.counts import parameter_count
from convoy.planner.assumptions import of_course, of_step
from convoy.planner.calibration import Calibration, shipped
from convoy.planner.campaign import Course, planned_budget
from convoy.planner.given import Given
from convoy.planner.hardware import hardware
from convoy.planner.interval import best_save_interval, in_steps
from convoy.planner.machine import as_rented, machine_of
from convoy.planner.ranking import loosened, ranked
from convoy.planner.search import Search, Task, Way
from convoy.planner.utilisation import mfu
from convoy.planner.workload import Machine
from convoy.results.plan import Keys, PlannedMarket, PlannedSpot
from convoy.results.plan_search import Found, PlanSearch, Unfit

INSTANCES = ("p4d.24xlarge", "p5.48xlarge")
"""Looked at unless others are named."""

NODES = (1, 2, 4, 8, 16, 32, 64)

TOKENS_PER_PARAMETER = 20
"""Where nobody says how many: Hoffmann et al. 2022."""

Beside = Callable[[Given, RunConfig, Machine], Given]
"""What is given for the machines of a configuration, one of them given too, with what holds for these alone."""


def search(
    config: RunConfig,
    instances: Sequence[str] = INSTANCES,
    nodes: Sequence[int] = NODES,
    max_usd: float | None = None,
    max_hours: float | None = None,
    given: Given | None = None,
    beside: Beside | None = None,
) -> PlanSearch:
    """For the model, batch, tokens and types of `config`; its parallelism, micro batch and recomputation are searched,
    and it saves as often as is best. beside: what is given of some machines besides. Raises ConfigError for a custom
    model, and for a type that the catalog does not have."""
    model, given = config.model, given or Given()
    if not isinstance(model, TransformerConfig):
        raise ConfigError(f"model.build = {model.build}: nothing is known of it, so nothing is planned")
    task = Task(model, config.data.sequence_length, config.train, config.optimizer.fused)
    calibration = given.calibration or shipped()
    searching = Search(task, calibration)
    rows: list[Found] = []
    unfit: list[Unfit] = []
    courses: list[Course] = []
    for name in instances:
        instance(name)  # a wrong name is told before anything is searched
    for name in instances:
        for count in nodes:
            try:
                way = _way(config, name, count, searching)
                courses.append(_course(config, name, way, given, beside))
                rows += _on(way, courses[-1])
            except ValueError as error:
                unfit.append(Unfit(instance_type=name, nodes=count, why=str(error)))
    found = ranked(rows, max_usd, max_hours)
    return PlanSearch(
        model=model.name,
        parameters=parameter_count(model),
        tokens=float(config.train.steps * config.train.global_batch * config.data.sequence_length),
        sequence_length=config.data.sequence_length,
        global_batch=config.train.global_batch,
        region=config.cluster.region,
        max_usd=max_usd,
        max_hours=max_hours,
        found=tuple(found),
        unfit=tuple(unfit),
        loosen=tuple(loosened(found, max_usd, max_hours)),
        no_spot=tuple(dict.fromkeys(course.rented.instance for course in courses if course.spot is None)),
        assumed=tuple(dict.fromkeys(line for course in courses for line in _assumed(course, calibration))),
        calibration=f"{calibration.date}: {calibration.data}",
    )


def recommended(config: RunConfig, searching: Search) -> Way | None:
    """The best way to train it on its own machines."""
    return searching.best(machine_of(config), config.cluster.nodes)


def _way(config: RunConfig, name: str, nodes: int, searching: Search) -> Way:
    """Raises ValueError where nothing fits, or nothing can be told."""
    there = _there(config, name, nodes)
    way = recommended(there, searching)
    if way is None:
        raise ValueError(_why_nothing(config.train.global_batch, nodes * machine_of(there).ranks))
    return way


def _there(config: RunConfig, name: str, nodes: int) -> RunConfig:
    """The same on other machines."""
    own = config.cluster.price if name == config.cluster.instance_type else None
    update = {"instance_type": name, "nodes": nodes, "nproc_per_node": None, "price": own}
    return as_rented(config.model_copy(update={"cluster": config.cluster.model_copy(update=update)}))


def _course(config: RunConfig, name: str, way: Way, given: Given, beside: Beside | None) -> Course:
    """Saved as often as is best where machines are taken away."""
    there = _there(config, name, way.job.nodes)
    told = given if beside is None else beside(given, there, way.job.machine)
    course = Course(there, way.job, way.time.total, told)
    best = best_save_interval(course.spot or course.steady, course.saving)
    every = in_steps(min(best, course.work_seconds), course.step_seconds)
    checkpoint = course.config.checkpoint.model_copy(update={"every_steps": every})
    return replace(course, config=course.config.model_copy(update={"checkpoint": checkpoint}))


def _assumed(course: Course, calibration: Calibration) -> Iterator[str]:
    yield from of_step(course.job, calibration)
    yield from of_course(course)


def _on(way: Way, course: Course) -> Iterator[Found]:
    """In each market. Raises ValueError where the training would hardly ever end."""
    budget = planned_budget(course)
    speed = way.job.tokens_per_step / way.time.total
    peak = hardware(way.job.machine, way.job.train.param_dtype).flops
    known = {
        "instance_type": course.rented.instance,
        "nodes": way.job.nodes,
        "keys": _keys(way, course.config),
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
        "usd_per_hour": market.cost.usd_per_hour if market.cost else None,
        "price_date": market.cost.price_date if market.cost else None,
        "stale": bool(market.cost and market.cost.stale),
        "price_source": market.cost.source if market.cost else None,
        "least_usd": market.least_usd if isinstance(market, PlannedSpot) else None,
        "most_usd": market.most_usd if isinstance(market, PlannedSpot) else None,
    }


def _keys(way: Way, config: RunConfig) -> Keys:
    """And how often it is saved; a pipeline writes no sample text, and is refused where one is asked for."""
    samples = config.evaluation.sample_tokens and config.evaluation.prompts
    silent = {"evaluation.sample_tokens": 0} if samples and way.job.parallel.pipeline > 1 else {}
    return {**keys_of(way), "checkpoint.every_steps": config.checkpoint.every_steps, **silent}


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
