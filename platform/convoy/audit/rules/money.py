"""Prices, costs and savings. Pure."""

from convoy.audit import machines
from convoy.audit.facts import Run
from convoy.audit.findings import Finding, claim_line
from convoy.audit.quantities.number import Span, exactly
from convoy.audit.rules.throughput import over_training
from convoy.audit.solver import Bound, Law

_MARKETS = {"price_per_hour": "", "price_per_gpu_hour": "", "spot_price": "spot", "on_demand_price": "on_demand"}
"""Keys of prices, and their market; the run's where they name none."""

_HOURLY = exactly(1 / 3600)

MOST_SAVED = exactly(0.91)
"""AWS's own `up to 90 %`, with its rounding."""


def laws(run: Run) -> list[Law]:
    """Of one run."""
    q, claims = run.quantity, run.claims
    over, of = over_training(run)
    sizes = (q("gpus"), q("nodes"), q("gpus_per_node"))
    implied = [
        Law(((q("price_per_hour"), 1), (q("price_per_gpu_hour"), -1), (q("gpus_per_node"), -1)), unsolved=sizes),
        Law(((q("total_price_per_hour"), 1), (q("price_per_hour"), -1), (q("nodes"), -1)), unsolved=sizes),
        Law(((q("total_price_per_hour"), 1), (q("price_per_gpu_hour"), -1), (q("gpus"), -1)), unsolved=sizes),
        Law(((q("cost"), 1), (q("price_per_gpu_hour"), -1), (q("gpu_hours"), -1)), _HOURLY),
        Law(((q("cost"), 1), (q("total_price_per_hour"), -1), (q("time"), -1)), _HOURLY),
        Law(((q("cost"), 1), (q("cost_per_token"), -1), (q("tokens"), -1))),
        Law(
            ((q("cost_per_token"), 1), (q("throughput"), 1), (q("total_price_per_hour"), -1)),
            over.times(_HOURLY),
            rests_on=of,
        ),
        Law(((q("spot_share"), 1), (q("on_demand_price"), 1), (q("spot_price"), -1))),
        Law(((q("dearness"), 1), (q("spot_share"), 1))),
    ]
    paid = {"spot": "spot_price", "on_demand": "on_demand_price"}.get(claims.market)
    if paid:
        implied.append(Law(((q("price_per_hour"), 1), (q(paid), -1)), rests_on=run.rests_on("market")))
    return implied


def bounds(run: Run) -> list[Bound]:
    q = run.quantity
    saved = "spot prices are at most 90 % below those on demand"
    return [
        # Dearness is 1 / (1 - savings), for a bound is from above.
        Bound(q("dearness"), exactly(1 / (1 - MOST_SAVED.value)), "unlikely", saved),
        Bound(q("spot_price"), q("on_demand_price"), "contradiction", "spot is never dearer than on demand"),
    ]


def findings(run: Run) -> list[Finding]:
    """Prices of the page that are far from those that the catalog has of the machine."""
    far = []
    for key, market in _MARKETS.items():
        figures, bought = getattr(run.claims, key), market or run.claims.market
        prices = machines.prices_of(run.machine, bought, run.claims.region) if run.machine else []
        if not figures or not prices or not run.machine:
            continue
        of_one = key == "price_per_gpu_hour" or figures[0].per == "gpu"
        stated = figures[0].span.times(exactly(run.machine.gpus if of_one else 1))
        usual = machines.price_span(prices, bought, elsewhere=not run.claims.region)
        if stated.apart(usual):
            far.append(_far(run, key, figures[0].text, stated, usual, machines.dated(prices)))
    return far


def _far(run: Run, key: str, text: str, stated: Span, usual: Span, days: str) -> Finding:
    assert run.machine is not None
    usual_prices = f"${usual.low:,.2f} to ${usual.high:,.2f} an hour, now and in the past, by prices of {days}"
    return Finding(
        kind="unlikely",
        claims=(claim_line(run.claim(key), text),),
        arithmetic=f"{text}, where a {run.machine.name} costs {usual_prices}",
        hint=_confusion(run, run.machine.gpus, stated, usual),
        given=(usual_prices,),
    )


def _confusion(run: Run, gpus: int, stated: Span, usual: Span) -> str:
    """What a price may have been taken for."""
    if gpus > 1 and not stated.times(exactly(gpus)).apart(usual):
        return "the price of one GPU for that of a machine?"
    nodes = run.claims.nodes[0].value if run.claims.nodes else 0.0
    if not nodes and gpus and run.claims.gpus:
        nodes = run.claims.gpus[0].value / gpus
    if nodes > 1 and not stated.times(exactly(1 / nodes)).apart(usual):
        return f"the price of all {nodes:.0f} machines for that of one?"
    return ""
