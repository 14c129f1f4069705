"""Parts of the training pages on money: each takes the report and gives blocks or a value."""

from datetime import date
from decimal import Decimal

from convoy.catalog.money import GB
from convoy.report import numbers
from convoy.report.cost import Cost, MachineCost, OnDemandPrice, ServiceCost
from convoy.report.page import Block, Heading, Table, Text, Tone, Value
from convoy.report.train_report import TrainReport


def cost_value(report: TrainReport) -> Value:
    """What the job has cost, or why that is not known."""
    spent = report.cost
    if spent is None:
        return Value("Cost", "—", "not known: these machines have no price")
    if spent.total is None:
        return Value("Cost", "—", f"not known: {spent.lacking[0]}")
    per_token = spent.usd_per_million_tokens
    each = f"{numbers.significant(per_token)} USD per million tokens" if per_token is not None else "no tokens yet"
    return Value("Cost", usd(spent.total), f"{each}{_instead(spent)}", _tone(spent))


def cost(report: TrainReport) -> tuple[Block, ...]:
    """Where the money went, line by line; why there is no total, where there is none."""
    spent = report.cost
    if spent is None:
        return ()
    rows = [*(_machine(machine) for machine in spent.machines), *(_service(service) for service in spent.services)]
    if spent.total is not None and spent.split is not None:
        split = spent.split
        parts = (split.productive, split.recomputed, split.stalled, split.idle)
        rows.append(("Total", "", "", usd(spent.total), *(usd(part) for part in parts), ""))
    headers = ("What", "Quantity", "Price", "USD", "Productive", "Recomputed", "Stalled", "Idle", "Price of")
    why = tuple(Text(f"No total: {reason}.") for reason in spent.lacking)
    left_out = Text(f"Not in it, as the log does not tell of it: {'; '.join(spent.not_counted)}.", quiet=True)
    meaning = (
        "Stalled: for saves and for other ranks. Idle: until the first step of a generation was done. What it would "
        "have cost on demand leaves out what interruptions took, so it is a lower bound."
    )
    on_demand = [Text(f"On demand: {told}.", quiet=True) for told in map(_on_demand, spent.on_demand_prices)]
    return (Heading("Cost"), *why, Text(meaning, quiet=True), Table(headers, tuple(rows)), *on_demand, left_out)


def usd(amount: Decimal) -> str:
    """`1,234.56 USD`."""
    return f"{amount:,.2f} USD"


def _instead(spent: Cost) -> str:
    if spent.saved is None or spent.on_demand is None:
        return ""
    word = "less" if spent.saved >= 0 else "more"
    return f", {numbers.percent(abs(spent.saved))} {word} than on demand ({usd(spent.on_demand)})"


def _tone(spent: Cost) -> Tone:
    if spent.saved is None:
        return "plain"
    return "good" if spent.saved >= 0 else "warning"


def _machine(machine: MachineCost) -> tuple[str, ...]:
    name = f"{machine.instance}, {machine.market.replace('_', ' ')}, {machine.region}"
    quantity = f"{numbers.significant(machine.node_hours)} node-hours"
    if machine.usd is None or machine.usd_per_hour is None:
        return (name, quantity, "not known", "", "", "", "", "", "")
    split = machine.usd
    parts = (split.total, split.productive, split.recomputed, split.stalled, split.idle)
    price = f"{machine.usd_per_hour:,g} an hour"
    return (name, quantity, price, *(usd(part) for part in parts), _dated(machine.price_date, machine.source))


def _on_demand(price: OnDemandPrice) -> str:
    each = f"{price.instance} in {price.region}, {price.usd_per_hour:,g} USD an hour"
    return f"{each} ({_dated(price.price_date, price.source)})"


def _service(service: ServiceCost) -> tuple[str, ...]:
    each = "thousand" if service.unit == "1,000 requests" else service.unit
    quantity = (
        f"{numbers.significant(service.quantity)} {each}s" if each != "GB" else numbers.size(service.quantity * GB)
    )
    price = f"{service.usd_per_unit:g} a {each}"
    return (service.what, quantity, price, usd(service.usd), "", "", "", "", _dated(service.price_date, service.source))


def _dated(day: date | None, source: str) -> str:
    return f"{day}, {source}" if day else source
