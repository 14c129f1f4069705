"""One line of a search: a way to train on some machines, and what it takes and costs in one market."""

from typing import Any

from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.planner.cost.campaign import Course, planned_budget
from convoy.planner.plan_parts import PlannedMarket, PlannedSpot
from convoy.planner.plan_schema import Keys
from convoy.planner.search.search import Way
from convoy.planner.search.search_schema import Found
from convoy.planner.step.hardware import hardware
from convoy.planner.step.mfu import mfu


def found_row(way: Way, course: Course, keys: Keys) -> Found:
    """In the market of the configuration. keys: as `Found` has them. Raises ValueError where the training would
    hardly ever end."""
    speed = way.job.tokens_per_step / way.time.total
    peak = hardware(way.job.machine, way.job.train.param_dtype).flops
    return Found(
        instance_type=course.rented.instance,
        nodes=way.job.nodes,
        keys=keys,
        trained=_trained(way, course.config),
        step_seconds=way.time.total,
        tokens_per_second=speed,
        mfu=mfu(way.job, speed / way.job.ranks, peak),
        memory_share=way.memory.share,
        pareto=False,
        within=True,
        **_paid(_bought(course)),
    )


def _bought(course: Course) -> PlannedMarket:
    budget = planned_budget(course)
    offers: list[PlannedMarket] = [*budget.steady, *([budget.spot] if budget.spot else [])]
    bought = next((offer for offer in offers if offer.market == course.config.cluster.market), None)
    if bought is None:
        raise ValueError(budget.why_no_spot)
    return bought


def _trained(way: Way, config: RunConfig) -> Keys:
    """What is searched of `train`, what of `parallel` differs from the defaults, and how often it is saved."""
    train, plain = way.job.train, ParallelConfig()
    own = way.job.parallel.model_dump()
    return {
        "train.micro_batch": train.micro_batch,
        "train.activation_checkpointing": train.activation_checkpointing,
        "train.compile": train.compile,
        **{f"parallel.{key}": value for key, value in own.items() if value != getattr(plain, key)},
        "checkpoint.every_steps": config.checkpoint.every_steps,
    }


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
