"""The best machines to train a model on: each with the best way to train on it, in each market, by cost and by time."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_args

from convoy.catalog.instances import instance
from convoy.config.cluster import ClusterConfig, Market, PriceConfig, check_backend
from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.ranks import World, check_ranks
from convoy.config.run import RunConfig, with_param_dtype
from convoy.model.counts import parameter_count
from convoy.planner.config_diff import differing
from convoy.planner.cost.assumptions import of_course, of_step
from convoy.planner.cost.campaign import Course
from convoy.planner.cost.save_interval import best_save_interval, in_steps
from convoy.planner.machine import as_rented, machine_of
from convoy.planner.measurements import Given
from convoy.planner.search.ranking import loosened, ranked
from convoy.planner.search.search import Search, Task, Way
from convoy.planner.search.search_result import found_row
from convoy.planner.search.search_schema import Found, PlanSearch, Unfit
from convoy.planner.step.calibration import Calibration, shipped
from convoy.planner.workload import Machine

INSTANCES = ("p4d.24xlarge", "p5.48xlarge")
"""Looked at unless others are named."""

NODES = (1, 2, 4, 8, 16, 32, 64)

MARKETS: tuple[Market, ...] = get_args(Market)

TOKENS_PER_PARAMETER = 20
"""Where nobody says how many: Hoffmann et al. 2022."""

Beside = Callable[[Given, RunConfig, Machine], Given]
"""What is given for the machines of a configuration, one of them given too, with what holds for these alone."""


class Base(NamedTuple):
    """What the keys of a search are laid on."""

    name: str
    """File, or preset of configs/train."""
    config: RunConfig


class _Place(NamedTuple):
    """Machines, and how they are bought."""

    instance_type: str
    nodes: int
    market: Market


def search(
    config: RunConfig,
    instances: Sequence[str] = INSTANCES,
    nodes: Sequence[int] = NODES,
    max_usd: float | None = None,
    max_hours: float | None = None,
    given: Given | None = None,
    beside: Beside | None = None,
    *,
    markets: Sequence[Market] = MARKETS,
    base: Base | None = None,
) -> PlanSearch:
    """For the model, batch, tokens and types of `config`; its parallelism, micro batch and recomputation are searched,
    and it saves as often as is best in each market. What its backend does not run is left out. beside: what is given of
    some machines besides. base: None: keys are laid on `config` itself. Raises ConfigError for a custom model, and for
    a type that the catalog does not have."""
    base = base or Base("", config)
    config, base = in_bf16(config), base._replace(config=in_bf16(base.config))
    model = config.model
    if not isinstance(model, TransformerConfig):
        raise ConfigError(f"model.build = {model.build}: nothing is known of it, so nothing is planned")
    task = Task(model, config.data.sequence_length, config.train, config.optimizer.fused)
    told = given or Given()
    calibration = told.calibration or shipped()
    for name in instances:
        instance(name)  # a wrong name is told before anything is searched
    seen = _Seen(config, base.config, Search(task, calibration), told, beside)
    for name in instances:
        for count in nodes:
            seen.look([_Place(name, count, market) for market in markets])
    found = ranked(seen.rows, max_usd, max_hours)
    return PlanSearch(
        model=model.name,
        parameters=parameter_count(model),
        tokens=float(config.train.steps * config.train.global_batch * config.data.sequence_length),
        sequence_length=config.data.sequence_length,
        global_batch=config.train.global_batch,
        region=config.cluster.region,
        max_usd=max_usd,
        max_hours=max_hours,
        laid_on=base.name,
        found=tuple(found),
        unfit=tuple(seen.unfit),
        refused=tuple(dict.fromkeys(seen.refused)),
        loosen=tuple(loosened(found, max_usd, max_hours)),
        no_spot=tuple(dict.fromkeys(seen.no_spot)),
        assumed=tuple(dict.fromkeys(line for course in seen.courses for line in _assumed(course, calibration))),
        calibration=f"{calibration.date}: {calibration.data}",
    )


class _Seen:
    """Places that were looked at, one number of machines after the other, and what was found there."""

    def __init__(
        self, config: RunConfig, base: RunConfig, searching: Search, given: Given, beside: Beside | None
    ) -> None:
        self._config, self._base, self._searching, self._given, self._beside = config, base, searching, given, beside
        self.rows: list[Found] = []
        self.courses: list[Course] = []
        self.unfit: list[Unfit] = []
        self.refused: list[str] = []
        self.no_spot: list[str] = []

    def look(self, places: Sequence[_Place]) -> None:
        """The same machines, in each market."""
        open_to = [place for place in places if self._is_run(place)]
        if not open_to:
            return
        name, nodes, _ = open_to[0]
        try:
            way = _way(_there(self._config, open_to[0]), self._searching)
        except ValueError as error:
            self.unfit.append(Unfit(instance_type=name, nodes=nodes, why=str(error)))
            return
        for place in open_to:
            try:
                self._in_market(place, way)
            except ValueError as error:
                told = Unfit(instance_type=name, nodes=nodes, market=place.market, why=str(error))
                self.unfit.append(told)

    def _is_run(self, place: _Place) -> bool:
        """By the backend that is configured; a local one is none that rents machines."""
        update = {"nodes": place.nodes, "market": place.market}
        try:
            check_backend(self._config.cluster.model_copy(update=update))
        except ConfigError as error:
            self.refused.append(str(error))
            return False
        return True

    def _in_market(self, place: _Place, way: Way) -> None:
        """Raises ValueError where the training would hardly ever end."""
        course = _course(_trained(_there(self._config, place), way), way, self._given, self._beside)
        if place.market == "spot" and course.spot is None:
            self.no_spot.append(place.instance_type)
            return
        course = _saved_at_best(course)
        self.courses.append(course)
        self.rows.append(found_row(way, course, differing(self._base, course.config)))


def in_bf16(config: RunConfig) -> RunConfig:
    """What `train.param_dtype: auto` stands for on GPUs, which are all that is searched."""
    return with_param_dtype(config, "bf16") if config.train.param_dtype == "auto" else config


def recommended(config: RunConfig, searching: Search) -> Way | None:
    """The best way to train it on its own machines."""
    return searching.best(machine_of(config), config.cluster.nodes)


def _way(there: RunConfig, searching: Search) -> Way:
    """Raises ValueError where nothing fits, or nothing can be told."""
    way = recommended(there, searching)
    if way is None:
        raise ValueError(_why_nothing(there))
    return way


def _why_nothing(there: RunConfig) -> str:
    train = there.train.model_copy(update={"micro_batch": 1})
    plain = there.model_copy(update={"train": train, "parallel": ParallelConfig()})
    try:
        check_ranks(plain, World(there.cluster.nodes, machine_of(there).ranks))
    except ConfigError as error:
        return str(error)
    return "nothing fits in 90 % of a GPU's memory"


def _there(config: RunConfig, place: _Place) -> RunConfig:
    """The same on other machines."""
    own = _own_price(config.cluster, place)
    update = {**place._asdict(), "nproc_per_node": None, "price": own}
    return as_rented(config.model_copy(update={"cluster": config.cluster.model_copy(update=update)}))


def _own_price(cluster: ClusterConfig, place: _Place) -> PriceConfig | None:
    """What is configured of these machines, in this market."""
    told = cluster.price
    if told is None or place.instance_type != cluster.instance_type or place.market == cluster.market:
        return told if place.instance_type == cluster.instance_type else None
    usd, day = told.usd_per_hour_on_demand, told.on_demand_date
    if place.market != "on_demand" or usd is None or day is None:
        return None
    return PriceConfig(usd_per_hour=usd, date=day, source=told.on_demand_source)


def _trained(there: RunConfig, way: Way) -> RunConfig:
    """A pipeline writes no sample text, and is refused where one is asked for."""
    update: dict[str, Any] = {"train": way.job.train, "parallel": way.job.parallel}
    if way.job.parallel.pipeline > 1 and there.evaluation.sample_tokens and there.evaluation.prompts:
        update["evaluation"] = there.evaluation.model_copy(update={"sample_tokens": 0})
    return there.model_copy(update=update)


def _course(there: RunConfig, way: Way, given: Given, beside: Beside | None) -> Course:
    told = given if beside is None else beside(given, there, way.job.machine)
    return Course(there, way.job, way.time.total, told)


def _saved_at_best(course: Course) -> Course:
    best = best_save_interval(course.failures, course.saving)
    every = in_steps(min(best, course.work_seconds), course.step_seconds)
    checkpoint = course.config.checkpoint.model_copy(update={"every_steps": every})
    return replace(course, config=course.config.model_copy(update={"checkpoint": checkpoint}))


def _assumed(course: Course, calibration: Calibration) -> Iterator[str]:
    yield from of_step(course.job, calibration)
    yield from of_course(course)
