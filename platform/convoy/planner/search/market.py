"""The best machines to train a model on, each with the best way to train there, in each market, by cost and time."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple, get_args

from convoy.catalog.instances import instance
from convoy.config.cluster import ClusterConfig, Market, PriceConfig, check_backend
from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig, World, check_ranks, with_param_dtype
from convoy.model.counts import parameter_count
from convoy.planner.config_keys import differing_keys
from convoy.planner.cost.assumptions import cost_assumptions, step_assumptions
from convoy.planner.cost.cost_model import CostModel
from convoy.planner.cost.failures import best_save_interval, interval_in_steps
from convoy.planner.measurements import Measurements
from convoy.planner.search.result import PlanSearch, SearchRow, UnfitMachines, mark_and_sort, search_row
from convoy.planner.search.search import FittingPlan, StrategySearch, TrainingSpec
from convoy.planner.step.calibration import shipped_calibration
from convoy.planner.workload import Machine, as_rented, machine_of

INSTANCES = ("p4d.24xlarge", "p5.48xlarge")
"""Searched unless others are named."""

NODES = (1, 2, 4, 8, 16, 32, 64)

MARKETS: tuple[Market, ...] = get_args(Market)

SEARCHED: tuple[Market, ...] = ("on_demand", "spot", "capacity_block")
"""Unless others are named: machines that are reserved are paid for a whole year, whatever one training takes."""

TOKENS_PER_PARAMETER = 20
"""Without a configured number of tokens: Hoffmann et al. 2022."""

MeasurementsFor = Callable[[Measurements, RunConfig, Machine], Measurements]
"""Measurements with those added that hold for the machines of a configuration."""


class SearchBase(NamedTuple):
    """What the keys of a search are laid on."""

    name: str
    """File, or preset of configs/train."""
    config: RunConfig


class _Offer(NamedTuple):
    """Machines, and how they are bought."""

    instance_type: str
    nodes: int
    market: Market


def search_machines(
    config: RunConfig,
    instances: Sequence[str] = INSTANCES,
    nodes: Sequence[int] = NODES,
    max_usd: float | None = None,
    max_hours: float | None = None,
    measurements: Measurements | None = None,
    measurements_for: MeasurementsFor | None = None,
    *,
    markets: Sequence[Market] = SEARCHED,
    base: SearchBase | None = None,
) -> PlanSearch:
    """Searches parallelism, micro batch and recomputation for the model, batch, tokens and types of `config`. In each
    market it saves at the best interval. What the configured backend does not run is left out. base: None: keys are
    laid on `config` itself. Raises ConfigError for a custom model, another engine, and for a type that the catalog does
    not have."""
    base = base or SearchBase("", config)
    config, base = auto_as_bf16(config), base._replace(config=auto_as_bf16(base.config))
    model = config.model
    if not isinstance(model, TransformerConfig):
        raise ConfigError(f"model.build = {model.build}: nothing is known of it, so nothing is planned")
    if config.engine.name != "convoy":
        raise ConfigError(f"engine = {config.engine.name}: plans are of Convoy's own engine, so nothing is planned")
    for name in instances:
        instance(name)  # refuse a wrong name before anything is searched
    measurements = measurements or Measurements()
    calibration = measurements.calibration or shipped_calibration()
    task = TrainingSpec(model, config.data.sequence_length, config.train, config.optimizer.fused)
    survey = _Survey(config, base.config, StrategySearch(task, calibration), measurements, measurements_for)
    for name in instances:
        for count in nodes:
            survey.add_offers([_Offer(name, count, market) for market in markets])
    assumed = [(*step_assumptions(costs.job, calibration), *cost_assumptions(costs)) for costs in survey.cost_models]
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
        found=tuple(mark_and_sort(survey.rows, max_usd, max_hours)),
        unfit=tuple(survey.unfit),
        refused=tuple(dict.fromkeys(survey.refused)),
        no_spot=tuple(dict.fromkeys(survey.no_spot)),
        assumed=tuple(dict.fromkeys(chain.from_iterable(assumed))),
        calibration=f"{calibration.date}: {calibration.data}",
    )


class _Survey:
    """Offers, one number of machines after the other, and the best way to train on each."""

    def __init__(
        self,
        config: RunConfig,
        base: RunConfig,
        searcher: StrategySearch,
        measurements: Measurements,
        measurements_for: MeasurementsFor | None,
    ) -> None:
        self._config, self._base, self._searcher = config, base, searcher
        self._measurements, self._measurements_for = measurements, measurements_for
        self.rows: list[SearchRow] = []
        self.cost_models: list[CostModel] = []
        self.unfit: list[UnfitMachines] = []
        self.refused: list[str] = []
        self.no_spot: list[str] = []

    def add_offers(self, offers: Sequence[_Offer]) -> None:
        """offers: the same machines, in each market."""
        offers = [offer for offer in offers if self._backend_takes(offer)]
        if not offers:
            return
        name, nodes, _ = offers[0]
        try:
            plan = _best_candidate(_with_offer(self._config, offers[0]), self._searcher)
        except ValueError as error:
            self.unfit.append(UnfitMachines(instance_type=name, nodes=nodes, why=str(error)))
            return
        for offer in offers:
            try:
                self._add_market(offer, plan)
            except ValueError as error:
                self.unfit.append(UnfitMachines(instance_type=name, nodes=nodes, market=offer.market, why=str(error)))

    def _backend_takes(self, offer: _Offer) -> bool:
        """Whether the configured backend takes such machines; a local one rents none."""
        update = {"nodes": offer.nodes, "market": offer.market}
        try:
            check_backend(self._config.cluster.model_copy(update=update))
        except ConfigError as error:
            self.refused.append(str(error))
            return False
        return True

    def _add_market(self, offer: _Offer, plan: FittingPlan) -> None:
        """Raises ValueError where the training would hardly ever end."""
        config, measurements = _with_candidate(_with_offer(self._config, offer), plan), self._measurements
        if self._measurements_for is not None:
            measurements = self._measurements_for(measurements, config, plan.job.machine)
        costs = CostModel(config, plan.job, plan.time.total, measurements)
        if offer.market == "spot" and costs.spot_failures is None:
            self.no_spot.append(offer.instance_type)
            return
        costs = _with_best_interval(costs)
        self.cost_models.append(costs)
        self.rows.append(search_row(plan, costs, differing_keys(self._base, costs.config)))


def auto_as_bf16(config: RunConfig) -> RunConfig:
    """`train.param_dtype: auto` as it resolves on GPUs, which are all that is searched."""
    return with_param_dtype(config, "bf16") if config.train.param_dtype == "auto" else config


def _best_candidate(config: RunConfig, searcher: StrategySearch) -> FittingPlan:
    """The best way to train it on its own machines. Raises ValueError where nothing fits or can be planned."""
    way = searcher.best(machine_of(config), config.cluster.nodes)
    if way is None:
        raise ValueError(_why_nothing_fits(config))
    return way


def _why_nothing_fits(config: RunConfig) -> str:
    train = config.train.model_copy(update={"micro_batch": 1})
    plain = config.model_copy(update={"train": train, "parallel": ParallelConfig()})
    try:
        check_ranks(plain, World(config.cluster.nodes, machine_of(config).ranks))
    except ConfigError as error:
        return str(error)
    return "nothing fits in 90 % of a GPU's memory"


def _with_offer(config: RunConfig, offer: _Offer) -> RunConfig:
    update = {**offer._asdict(), "nproc_per_node": None, "price": _configured_price(config.cluster, offer)}
    return as_rented(config.model_copy(update={"cluster": config.cluster.model_copy(update=update)}))


def _configured_price(cluster: ClusterConfig, offer: _Offer) -> PriceConfig | None:
    """The configured price of these machines in this market."""
    price = cluster.price
    if price is None or offer.instance_type != cluster.instance_type:
        return None
    if offer.market == cluster.market:
        return price
    usd, day = price.usd_per_hour_on_demand, price.on_demand_date
    if offer.market != "on_demand" or usd is None or day is None:
        return None
    return PriceConfig(usd_per_hour=usd, date=day, source=price.on_demand_source)


def _with_candidate(config: RunConfig, plan: FittingPlan) -> RunConfig:
    """The configuration that trains this way. A pipeline writes no sample text, and is refused with it."""
    update: dict[str, Any] = {"train": plan.job.train, "parallel": plan.job.parallel}
    if plan.job.parallel.pipeline > 1 and config.evaluation.sample_tokens and config.evaluation.prompts:
        update["evaluation"] = config.evaluation.model_copy(update={"sample_tokens": 0})
    return config.model_copy(update=update)


def _with_best_interval(costs: CostModel) -> CostModel:
    best = best_save_interval(costs.market_failures, costs.save_cost)
    every = interval_in_steps(min(best, costs.work_seconds), costs.step_seconds)
    checkpoint = costs.config.checkpoint.model_copy(update={"every_steps": every})
    return replace(costs, config=costs.config.model_copy(update={"checkpoint": checkpoint}))
