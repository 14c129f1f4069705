"""Saves, interruptions, time and cost of a configuration, for the plan."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from convoy.catalog.prices import Market, Price
from convoy.config.run import RunConfig
from convoy.model.counts import checkpoint_bytes
from convoy.planner.cost.campaign import Campaign, expected_campaign
from convoy.planner.cost.cost import Cost, StoredCheckpoints, campaign_cost
from convoy.planner.cost.failures import (
    FailureModel,
    InterruptionRate,
    RestartCost,
    SaveCost,
    assumed_restart,
    assumed_save,
    best_save_interval,
    expected_drain,
    hardware_failures,
    interval_in_steps,
    spot_failures,
)
from convoy.planner.measurements import Measurements
from convoy.planner.workload import Workload


@dataclass(frozen=True)
class CostModel:
    """A configuration on rented machines, once the time of its step is known."""

    config: RunConfig
    job: Workload
    step_seconds: float
    measurements: Measurements

    @property
    def state_bytes(self) -> float:
        return float(checkpoint_bytes(self.job.model))

    @property
    def tokens(self) -> float:
        return float(self.config.train.steps * self.job.tokens_per_step)

    @property
    def work_seconds(self) -> float:
        return self.config.train.steps * self.step_seconds

    @property
    def instance(self) -> str:
        """Raises ValueError where the machines are one's own."""
        if self.config.cluster.instance_type is None:
            raise ValueError("cluster.instance_type: none is named")
        return self.config.cluster.instance_type

    @property
    def save_cost(self) -> SaveCost:
        paced = self.config.checkpoint.write_mb_per_second
        assumed = assumed_save(self.state_bytes, self.job.ranks, paced and paced * 1e6, self._storage_rate)
        return self.measurements.saving or assumed

    @property
    def restart(self) -> RestartCost:
        assumed = assumed_restart(self.state_bytes, self.job.ranks, self._storage_rate)
        restart, wait = self.measurements.restart or assumed, self.measurements.replacement_seconds
        return restart if wait is None else replace(restart, wait_seconds=wait)

    @property
    def _storage_rate(self) -> float | None:
        """Bytes per second of all machines together."""
        each = self.measurements.node_bytes_per_second
        return each and each * self.job.nodes

    @property
    def hardware_failures(self) -> FailureModel:
        if self.config.cluster.instance_type is None:
            return FailureModel(self.job.nodes)
        return hardware_failures(self.instance, self.job.nodes)

    @property
    def spot_failures(self) -> FailureModel | None:
        if self.config.cluster.instance_type is None:
            return None
        rate = self.measurements.node_bytes_per_second
        last = expected_drain(self.state_bytes, self.job.nodes, rate, self.step_seconds) if rate else None
        return spot_failures(self.instance, self.job.nodes, last)

    @property
    def market_failures(self) -> FailureModel:
        """In the market of the configuration. Raises ValueError for a type on spot of which nobody knows how often it
        is reclaimed."""
        if self.config.cluster.market != "spot":
            return self.hardware_failures
        if (spot := self.spot_failures) is None:
            raise ValueError(f"spot: how often {self.instance} is reclaimed is not known")
        return spot

    @property
    def save_interval_seconds(self) -> float:
        """Seconds of work between two saves, as configured."""
        every = self.config.checkpoint.every_steps
        return self.work_seconds if every is None else min(self.work_seconds, every * self.step_seconds)

    @property
    def stored_checkpoints(self) -> StoredCheckpoints:
        checkpoint, cluster = self.config.checkpoint, self.config.cluster
        every = checkpoint.retention.keep_every_steps
        count = checkpoint.retention.keep_last + 1 + (self.config.train.steps // every if every else 0)
        root, verified = self.config.root or "", checkpoint.verify
        return StoredCheckpoints(
            root, cluster.region, self.state_bytes, self.job.ranks, count, verified, cluster.file_system
        )

    def price(self, market: Market | None = None) -> Price | None:
        """The price of a machine in a market, by default that of the configuration; None: not known, or the machines
        are one's own."""
        cluster = self.config.cluster
        if cluster.instance_type is None:
            return None
        prices = self.measurements.prices.for_cluster(cluster)
        return prices.price(cluster.instance_type, market or cluster.market, cluster.region)

    def expected_campaign(
        self, interval: float, failures: FailureModel | None = None, rate: InterruptionRate | None = None
    ) -> Campaign:
        """Expected with so many seconds of work between two saves. failures: by default those in the market of the
        configuration. rate: one of theirs, by default the upper end. Raises as `expected_campaign`."""
        failures = failures or self.market_failures
        rate = rate or failures.highest_rate
        return expected_campaign(self.work_seconds, rate, interval, failures, self.save_cost, self.restart)

    def cost(self, campaign: Campaign, price: Price | None, usd_per_hour: float | None = None) -> Cost | None:
        """None: the price is not known. usd_per_hour: of one of the price's zones, in its place."""
        if price is None:
            return None
        stale = self.measurements.prices.is_stale(price.date)
        return campaign_cost(campaign, self.job.nodes, price, self.stored_checkpoints, usd_per_hour, stale=stale)


@dataclass(frozen=True, kw_only=True)
class SavePlan:
    """Checkpoints, in the market of the configuration."""

    state_bytes: float
    stall_seconds: float
    """How long a save stops training."""
    durable_seconds: float
    """From the beginning of a save until it is durable."""
    restart_seconds: float
    """After an interruption, once there are machines."""
    mtbf_seconds: float | None
    """Mean time between interruptions of the gang, at the upper end of their rates; null: there are none."""
    best_interval_seconds: float | None
    """Work between two saves; null: nothing interrupts."""
    best_every_steps: int | None
    every_steps: int | None
    """As configured; null: only at the end."""
    overhead: float
    """All other time over the productive time, as configured."""
    best_overhead: float
    """At the best interval, in whole steps."""
    seconds_over_best: float | None = None
    """How much longer the whole takes with the configured interval. Null: the plan is of an older version."""
    usd_over_best: float | None
    """What the configured interval costs more; below 0: less, for requests to S3 cost too, and the best interval is the
    best in time alone. Null: the price is not known."""

    @property
    def stall_seconds_per_step(self) -> float:
        return self.stall_seconds / self.every_steps if self.every_steps else 0.0


@dataclass(frozen=True)
class BudgetStop:
    """A limit of `budget:` that the run reaches before its last step: it saves and ends there."""

    key: str
    """`budget.max_hours` or `budget.max_cost_usd`."""
    limit: float
    needed: float
    """What the whole training needs of the same."""
    tokens: float
    """Trained by then, roughly."""


def plan_saves(costs: CostModel) -> SavePlan:
    """Raises ValueError where the training would hardly ever end, and as `CostModel.market_failures`."""
    best = best_save_interval(costs.market_failures, costs.save_cost)
    mtbf = costs.market_failures.highest_rate.mtbf_seconds
    steps = interval_in_steps(best, costs.step_seconds) if math.isfinite(best) else None
    whole = best if steps is None else min(costs.work_seconds, steps * costs.step_seconds)
    now, then = costs.expected_campaign(costs.save_interval_seconds), costs.expected_campaign(whole)
    now_cost, then_cost = (costs.cost(each, costs.price()) for each in (now, then))
    return SavePlan(
        state_bytes=costs.state_bytes,
        stall_seconds=costs.save_cost.stall_seconds,
        durable_seconds=costs.save_cost.durable_seconds,
        restart_seconds=costs.restart.seconds,
        mtbf_seconds=_finite_or_none(mtbf),
        best_interval_seconds=_finite_or_none(best),
        best_every_steps=steps,
        every_steps=costs.config.checkpoint.every_steps,
        overhead=now.overhead,
        best_overhead=then.overhead,
        seconds_over_best=now.seconds - then.seconds,
        usd_over_best=round(now_cost.usd - then_cost.usd, 2) if now_cost and then_cost else None,
    )


def first_budget_stop(costs: CostModel) -> BudgetStop | None:
    """The limit of `budget:` that ends the run first; None: it gets to its last step. Raises as `expected_campaign`.

    As a job counts them (`config/train.py`): hours in which there is a gang, and what its machines cost in them.
    """
    campaign = costs.expected_campaign(costs.save_interval_seconds)
    hours = (campaign.seconds - campaign.waiting) / 3600
    stops = [
        BudgetStop(key, limit, needed, tokens=costs.tokens * limit / needed)
        for key, limit, needed in _limits_and_needs(costs, hours)
        if limit < needed
    ]
    return min(stops, key=lambda stop: stop.tokens, default=None)


def _limits_and_needs(costs: CostModel, needed_hours: float) -> Iterator[tuple[str, float, float]]:
    """Key, limit, and what the whole training needs."""
    limits, price = costs.config.budget, costs.price()
    if limits.max_hours is not None:
        yield "budget.max_hours", limits.max_hours, needed_hours
    if limits.max_cost_usd is not None and price is not None:
        yield "budget.max_cost_usd", limits.max_cost_usd, needed_hours * price.usd_per_hour * costs.job.nodes


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
