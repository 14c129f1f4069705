"""Saves, interruptions, time and cost of a configuration, for the plan."""

import math
from dataclasses import dataclass, fields, replace

from convoy.config.run import RunConfig
from convoy.model.counts import saved_bytes
from convoy.planner.cost.budget import Rented, SpotOffer, budget
from convoy.planner.cost.cost import Money, money
from convoy.planner.cost.drain import drain
from convoy.planner.cost.failures import Failures, Restart, Saving, never_taken, on_spot
from convoy.planner.cost.save_interval import assumed_restart, assumed_saving, best_save_interval, in_steps
from convoy.planner.cost.spot import Campaign, expected_campaign
from convoy.planner.cost.storage import Kept
from convoy.planner.measurements import Measurements
from convoy.planner.plan_parts import PlannedBudget, PlannedCost, PlannedMarket, PlannedSaves, PlannedSpot
from convoy.planner.workload import Workload


@dataclass(frozen=True)
class Course:
    """A configuration on rented machines, once the time of its step is known."""

    config: RunConfig
    job: Workload
    step_seconds: float
    given: Measurements

    @property
    def state_bytes(self) -> float:
        return float(saved_bytes(self.job.model))

    @property
    def tokens(self) -> float:
        return float(self.config.train.steps * self.job.tokens_per_step)

    @property
    def work_seconds(self) -> float:
        return self.config.train.steps * self.step_seconds

    @property
    def rented(self) -> Rented:
        """Raises ValueError where the machines are one's own."""
        cluster = self.config.cluster
        if cluster.instance_type is None:
            raise ValueError("cluster.instance_type: none is named")
        return Rented(cluster.instance_type, self.job.nodes, cluster.region, self.given.prices.of(cluster))

    @property
    def saving(self) -> Saving:
        paced = self.config.checkpoint.write_mb_per_second
        told = self.given.saving
        return told or assumed_saving(self.state_bytes, self.job.ranks, paced and paced * 1e6, self._storage)

    @property
    def restart(self) -> Restart:
        told, wait = self.given.restart, self.given.replacement_seconds
        found = told or assumed_restart(self.state_bytes, self.job.ranks, self._storage)
        return found if wait is None else replace(found, wait_seconds=wait)

    @property
    def _storage(self) -> float | None:
        """Of all machines together."""
        each = self.given.node_bytes_per_second
        return each and each * self.job.nodes

    @property
    def steady(self) -> Failures:
        if self.config.cluster.instance_type is None:
            return Failures(self.job.nodes)
        return never_taken(self.rented.instance, self.job.nodes)

    @property
    def spot(self) -> Failures | None:
        if self.config.cluster.instance_type is None:
            return None
        rate = self.given.node_bytes_per_second
        last = drain(self.state_bytes, self.job.nodes, rate, self.step_seconds) if rate else None
        return on_spot(self.rented.instance, self.job.nodes, last)

    @property
    def failures(self) -> Failures:
        """In the market of the configuration. Raises ValueError for a type on spot of which nobody knows how often it
        is taken away."""
        if self.config.cluster.market != "spot":
            return self.steady
        if (spot := self.spot) is None:
            raise ValueError(f"spot: how often {self.rented.instance} is taken away is not known")
        return spot

    @property
    def interval(self) -> float:
        """Seconds of work between two saves, as configured."""
        every = self.config.checkpoint.every_steps
        return self.work_seconds if every is None else min(self.work_seconds, every * self.step_seconds)

    @property
    def kept(self) -> Kept:
        told = self.config.checkpoint
        every = told.retention.keep_every_steps
        count = told.retention.keep_last + 1 + (self.config.train.steps // every if every else 0)
        where, region = self.config.root or "", self.config.cluster.region
        return Kept(where, region, self.state_bytes, self.job.ranks, count, told.verify)

    def at(self, interval: float) -> Campaign:
        """Expected in the market of the configuration. Raises as `expected_campaign`."""
        failures = self.failures
        return expected_campaign(self.work_seconds, failures.often, interval, failures, self.saving, self.restart)


def planned_saves(course: Course) -> PlannedSaves:
    """Raises ValueError where the training would hardly ever end, and as `Course.failures`."""
    best, mtbf = best_save_interval(course.failures, course.saving), course.failures.often.mtbf_seconds
    steps = in_steps(best, course.step_seconds) if math.isfinite(best) else None
    whole = best if steps is None else min(course.work_seconds, steps * course.step_seconds)
    now, then = course.at(course.interval), course.at(whole)
    cluster = course.config.cluster
    price = None if cluster.instance_type is None else course.rented.price(cluster.market)
    over = None
    if price is not None:
        costs = [money(each, course.job.nodes, price, course.kept).total for each in (now, then)]
        over = float(costs[0] - costs[1])
    return PlannedSaves(
        state_bytes=course.state_bytes,
        stall_seconds=course.saving.stall_seconds,
        durable_seconds=course.saving.durable_seconds,
        restart_seconds=course.restart.seconds,
        mtbf_seconds=_finite(mtbf),
        best_interval_seconds=_finite(best),
        best_every_steps=steps,
        every_steps=course.config.checkpoint.every_steps,
        overhead=now.overhead,
        best_overhead=then.overhead,
        seconds_over_best=now.seconds - then.seconds,
        usd_over_best=over,
    )


def planned_budget(course: Course) -> PlannedBudget:
    """Raises ValueError where the training would hardly ever end even on machines that nobody takes away."""
    found = budget(
        course.tokens,
        course.job.tokens_per_step / course.step_seconds,
        course.rented,
        course.interval,
        course.steady,
        course.spot,
        course.saving,
        course.restart,
        course.kept,
    )
    return PlannedBudget(
        tokens=found.tokens,
        steady=tuple(
            PlannedMarket(
                market=offer.market,
                seconds=offer.campaign.seconds,
                parts=_seconds(offer.campaign),
                interruptions=offer.campaign.interruptions,
                cost=_cost(offer.money, course),
                why=offer.why,
            )
            for offer in found.steady
        ),
        spot=_spot(found.spot, course) if found.spot else None,
        why_no_spot=found.why_no_spot,
    )


def _spot(found: SpotOffer, course: Course) -> PlannedSpot:
    often, bad = found.expected.campaign, found.campaigns.bad_day
    return PlannedSpot(
        market="spot",
        seconds=often.seconds,
        parts=_seconds(often),
        interruptions=often.interruptions,
        cost=_cost(found.expected.money, course),
        why=found.expected.why,
        shortest_seconds=found.campaigns.rare.seconds,
        bad_day_seconds=bad.seconds if bad else None,
        least_usd=_usd(found.cheapest),
        most_usd=_usd(found.dearest),
        bad_day_endless=found.campaigns.endless,
        bad_day_usd=_usd(found.bad_day),
        savings=found.savings,
        bad_day_savings=found.bad_day_savings,
    )


def _seconds(campaign: Campaign) -> dict[str, float]:
    names = ("productive", "stalled", "recomputed", "draining", "waiting", "restarting")
    return {name: getattr(campaign, name) for name in names}


def _cost(found: Money | None, course: Course) -> PlannedCost | None:
    if found is None:
        return None
    return PlannedCost(
        usd=float(found.total),
        usd_per_hour=found.usd_per_hour,
        price_date=found.price.date,
        source=found.price.source,
        stale=course.given.prices.is_stale(found.price.date),
        machines={part.name: float(getattr(found.machines, part.name)) for part in fields(found.machines)},
        services={service.what: float(service.usd) for service in found.services},
        not_counted=found.not_counted,
    )


def _usd(found: Money | None) -> float | None:
    return None if found is None else float(found.total)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
