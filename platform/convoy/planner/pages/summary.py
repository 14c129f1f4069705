"""A plan in some lines, for where a run is started: what matters of the page that `convoy plan` shows."""

from collections.abc import Mapping

from convoy.display import formatting
from convoy.display.formatting import gib
from convoy.planner.config_keys import key_words
from convoy.planner.cost.budget import MarketPlan, SpotPlan
from convoy.planner.cost.campaign import Saves
from convoy.planner.pages.plan import stop_in_words
from convoy.planner.pages.sections import MARKETS
from convoy.planner.plan_schema import Plan
from convoy.planner.step.speed import Step

_CHANGES = 3


def plan_lines(plan: Plan) -> Mapping[str, str]:
    """By what they are of; a value may have several lines."""
    bought = plan.bought
    lines = {
        "memory": room(plan),
        "step": "" if plan.step is None else _step(plan.step),
        "time, cost": "" if plan.budget is None or bought is None else _whole(plan, bought),
        "budget": stop_in_words(plan),
        "checkpoints": "" if plan.saves is None else _saves(plan.saves),
        "limits": "\n".join(f"{limit.what}: {limit.text}" for limit in plan.limits),
        "change": "\n".join(f"{key_words(change.keys)}: {change.text}" for change in plan.changes[:_CHANGES]),
        "not planned": "\n".join(plan.lacking()),
    }
    return {what: text for what, text in lines.items() if text}


def plan_line(plan: Plan) -> str:
    """The least that a person should have read before the machines are paid for."""
    bought, saves = plan.bought, plan.saves
    told = [
        room(plan),
        "" if plan.step is None else _step(plan.step),
        "" if plan.budget is None or bought is None else _whole(plan, bought),
        stop_in_words(plan),
        "" if saves is None or saves.best_every_steps is None else _best(saves),
        *(f"not planned: {lacking}" for lacking in plan.lacking()),
    ]
    return "; ".join(text for text in told if text)


def warning(plan: Plan) -> str | None:
    """That nobody should count on it, or that its budget ends the run early; None: neither, or not known."""
    needed, host = plan.memory, plan.host_memory
    if needed is not None and not needed.reliable:
        return room(plan)
    if host is not None and not host.fits:
        return f"does not fit: {gib(host.total_bytes)} of {gib(host.capacity_bytes)} of a machine's own memory"
    return f"is stopped by its budget: {stop_in_words(plan)}" if plan.stop else None


def room(plan: Plan) -> str:
    """Whether it fits, and how well; empty: not known."""
    needed = plan.memory
    if needed is None:
        return ""
    percent = "under 1%" if needed.share < 0.01 else f"{needed.share:.0%}"
    share = f"{gib(needed.peak_bytes)} of {gib(needed.capacity_bytes)} of a rank's memory, {percent}"
    if not needed.fits:
        return f"does not fit: {share}"
    return f"fits: {share}" if needed.reliable else f"may not fit: {share}, and above 90 % nobody can tell"


def _step(step: Step) -> str:
    return f"{formatting.duration(step.seconds)} a step, {formatting.rate(step.tokens_per_second)}, MFU {step.mfu:.1%}"


def _whole(plan: Plan, bought: MarketPlan) -> str:
    assert plan.budget is not None
    proviso = "" if plan.fits else ", were there room"
    return f"{formatting.count(plan.budget.tokens)} tokens in {_bought(bought)}{proviso}"


def _bought(bought: MarketPlan) -> str:
    time, market = formatting.long_duration(bought.seconds), MARKETS.get(bought.market, bought.market)
    if bought.cost is None:
        return f"{time}, {market}: {bought.why}"
    between = ""
    if isinstance(bought, SpotPlan) and bought.least_usd is not None and bought.most_usd is not None:
        between = f" ({bought.least_usd:,.0f} to {bought.most_usd:,.0f})"
    return f"{time} for {bought.cost.usd:,.0f} USD{between}, {market}, price of {bought.cost.price_date}"


def _saves(saves: Saves) -> str:
    size = formatting.size(saves.state_bytes)
    if saves.best_every_steps is None:
        return f"{size}; nothing is expected to interrupt the run"
    every = "only at the end" if saves.every_steps is None else f"every {saves.every_steps:,} steps"
    return f"{size}; {_best(saves)}; configured: {every}"


def _best(saves: Saves) -> str:
    assert saves.best_interval_seconds is not None
    interval = formatting.duration(saves.best_interval_seconds)
    return f"best checkpoint.every_steps = {saves.best_every_steps:,}, {interval}"
