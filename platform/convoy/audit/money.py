"""Prices, costs and savings. Pure."""

from convoy.audit.facts import Run
from convoy.audit.rates import over_training
from convoy.audit.solve import Bound, Law
from convoy.audit.span import exactly

_HOURLY = exactly(1 / 3600)

MOST_SAVED = exactly(0.91)
"""AWS's own `up to 90 %`, with its rounding."""


def laws(run: Run) -> list[Law]:
    """Of one run."""
    q, claims = run.quantity, run.claims
    over, of = over_training(run)
    sizes = (q("gpus"), q("nodes"), q("gpus_per_node"))
    found = [
        Law(((q("price_per_hour"), 1), (q("price_per_gpu_hour"), -1), (q("gpus_per_node"), -1)), given=sizes),
        Law(((q("total_price_per_hour"), 1), (q("price_per_hour"), -1), (q("nodes"), -1)), given=sizes),
        Law(((q("total_price_per_hour"), 1), (q("price_per_gpu_hour"), -1), (q("gpus"), -1)), given=sizes),
        Law(((q("cost"), 1), (q("price_per_gpu_hour"), -1), (q("gpu_hours"), -1)), _HOURLY),
        Law(((q("cost"), 1), (q("total_price_per_hour"), -1), (q("time"), -1)), _HOURLY),
        Law(((q("cost"), 1), (q("cost_per_token"), -1), (q("tokens"), -1))),
        Law(
            ((q("cost_per_token"), 1), (q("throughput"), 1), (q("total_price_per_hour"), -1)),
            over.times(_HOURLY),
            rests_on=of,
        ),
        Law(((q("spot_share"), 1), (q("on_demand_price"), 1), (q("spot_price"), -1))),
    ]
    paid = {"spot": "spot_price", "on_demand": "on_demand_price"}.get(claims.market)
    if paid:
        found.append(Law(((q("price_per_hour"), 1), (q(paid), -1)), rests_on=run.rests_on("market")))
    return found


def bounds(run: Run) -> list[Bound]:
    q = run.quantity
    saved = "spot prices are at most 90 % below those on demand"
    return [
        # 1 / (1 - savings), for a bound is from above.
        Bound(q("dearness"), exactly(1 / (1 - MOST_SAVED.value)), "unlikely", saved),
        Bound(q("spot_price"), q("on_demand_price"), "contradiction", "spot is never dearer than on demand"),
    ]


def savings(run: Run) -> list[Law]:
    """What the bound on savings is told of."""
    return [Law(((run.quantity("dearness"), 1), (run.quantity("spot_share"), 1)))]
