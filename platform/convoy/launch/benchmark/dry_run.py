"""The dry run of a benchmark in words: its groups, machines, their price, and its time. Pure."""

from collections.abc import Sequence

from convoy.benchmark.groups import Group
from convoy.catalog.prices import SHIPPED
from convoy.config.run import RunConfig
from convoy.display.formatting import duration, plural
from convoy.launch.benchmark.split import Share, descriptions
from convoy.launch.dry_run import aligned, machine_in_words, price_in_words
from convoy.launch.pricing import instance_price

WORKERS = 16
"""Tasks that Metaflow's `run` runs at the same time, by default of `--max-workers`."""

_LONGER = ", and blocks whose few steps take longer come on top"


def describe_bench(shares: Sequence[Share], run: RunConfig) -> str:
    """A line for each group, and then lines `key: value` for all of them.

    run: of any group, with the price that its machines will have. Raises as `support.world`.
    """
    local = run.cluster.backend == "local"
    price = {} if local else {"price": price_in_words(run, "for a gang")}
    totals = {"machine": machine_in_words(run), **price, "in all": _in_all(shares, run), "time": _time(shares, local)}
    return "\n".join([*(line for share in shares for line in descriptions(share)), aligned(totals)])


def measured_seconds(group: Group) -> float:
    """Length of all planned blocks of the group, one after the other. Drills have none."""
    if group.recovery is not None:
        return 0.0
    pairs = group.compared.pairs if group.compared else 1
    return pairs * len(group.cases) * group.measure.rounds * group.measure.block_seconds


def _in_all(shares: Sequence[Share], run: RunConfig) -> str:
    groups = plural(sum(len(share.groups) for share in shares), "group")
    if run.cluster.backend == "local":
        return f"{groups}, one after the other"
    machines = sorted((share.nodes for share in shares), reverse=True)
    if len(machines) == 1:
        return f"{groups}: {_rented(machines[0], run)}"
    at_once = machines[:WORKERS]
    return (
        f"{groups}, {len(at_once)} at the same time, each on machines of its own: {_rented(sum(at_once), run)}; "
        f"with run --max-workers 1 one after the other: at most {_rented(machines[0], run)}"
    )


def _rented(machines: int, run: RunConfig) -> str:
    price = instance_price(run, SHIPPED)
    cost = "" if price is None else f", {price.usd_per_hour * machines:.2f} USD/h"
    return f"{plural(machines, 'machine')}{cost}"


def _time(shares: Sequence[Share], local: bool) -> str:
    each = [sum(measured_seconds(group) for group in share.groups) for share in shares]
    blocks = f"about {duration(sum(each))} of blocks that count"
    if local:
        return f"{blocks}; building, warm-up, drills{_LONGER}"
    return f"{blocks}, {duration(max(each))} in the longest group; machines, building, warm-up, drills{_LONGER}"
