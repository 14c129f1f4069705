"""What the whole training takes in the market of its configuration, where that is all that is asked of it."""

from convoy.planner.cost.campaign import Course
from convoy.planner.cost.cost import money


def whole_run(course: Course) -> tuple[float, float | None]:
    """Seconds, and US dollars, which are None without a price: those of `planned_budget` for that market. Raises
    ValueError where the training would hardly ever end, and as `Course.failures`."""
    campaign, cluster = course.at(course.interval), course.config.cluster
    price = None if cluster.instance_type is None else course.rented.price(cluster.market)
    if price is None:
        return campaign.seconds, None
    return campaign.seconds, float(money(campaign, course.job.nodes, price, course.kept).total)
