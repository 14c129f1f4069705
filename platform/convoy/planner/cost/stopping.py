"""Whether the limits of `budget:` end a run before its last step."""

from collections.abc import Iterator

from convoy.planner.cost.campaign import Course
from convoy.planner.plan_parts import PlannedStop


def planned_stop(course: Course) -> PlannedStop | None:
    """By the limit that is reached first; None: the run gets to its last step. Raises as `Course.at`.

    As a job counts them (`config/train.py`): hours in which there is a gang, and what its machines cost in them.
    """
    campaign = course.at(course.interval)
    hours = (campaign.seconds - campaign.waiting) / 3600
    stops = [
        PlannedStop(key=key, limit=limit, needed=needed, tokens=course.tokens * limit / needed)
        for key, limit, needed in _limits(course, hours)
        if limit < needed
    ]
    return min(stops, key=lambda stop: stop.tokens, default=None)


def _limits(course: Course, hours: float) -> Iterator[tuple[str, float, float]]:
    """Key, limit, and what all of the training needs."""
    budget, cluster = course.config.budget, course.config.cluster
    if budget.max_hours is not None:
        yield "budget.max_hours", budget.max_hours, hours
    price = course.rented.price(cluster.market) if cluster.instance_type is not None else None
    if budget.max_cost_usd is not None and price is not None:
        yield "budget.max_cost_usd", budget.max_cost_usd, hours * price.usd_per_hour * course.job.nodes
