"""Parts of the training pages on money: each takes the report and gives blocks or a value."""

from datetime import date

from convoy.catalog.services import ServiceCost
from convoy.display import formatting
from convoy.display.formatting import usd
from convoy.display.page import Block, Column, Heading, Table, Text, Tone, Value, columns
from convoy.report.analysis.cost import Cost, MachineCost, OnDemandPrice
from convoy.report.train_report import TrainReport


def cost_value(report: TrainReport) -> Value:
    """What the job has cost, or why that is not known."""
    spent = report.cost
    if spent is None:
        return Value("Cost", "—", "not known: these machines have no price")
    if spent.total is None:
        return Value("Cost", "—", f"not known: {spent.lacking[0]}")
    per_token, unit = spent.usd_per_million_tokens, report.unit
    each = f"{formatting.significant(per_token)} USD per million {unit}" if per_token is not None else f"no {unit} yet"
    return Value("Cost", usd(spent.total), f"{each}{_saved_on_demand(spent)}", _saving_tone(spent))


def cost(report: TrainReport) -> tuple[Block, ...]:
    """Where the money went, line by line; why there is no total, where there is none."""
    spent = report.cost
    if spent is None:
        return ()
    rows = [*map(_machine_row, spent.machines), *map(_service_row, spent.services)]
    splits = [(_machine_name(machine), machine.usd) for machine in spent.machines if machine.usd is not None]
    if spent.total is not None and spent.split is not None:
        rows.append(("Total", "", "", usd(spent.total), ""))
        splits.append(("Total", spent.split))
    bill = Table(("What", "Quantity", "Price", "USD", "Price of"), tuple(rows))
    uses = columns(
        splits,
        Column("What", lambda row: row[0]),
        Column("Productive", lambda row: row[1].productive, usd),
        Column("Recomputed", lambda row: row[1].recomputed, usd),
        Column("Measuring", lambda row: row[1].measuring, usd),
        Column("Stalled", lambda row: row[1].stalled, usd),
        Column("Idle", lambda row: row[1].idle, usd),
    )
    why = tuple(Text(f"No total: {reason}.") for reason in spent.lacking)
    left_out = Text(f"Not included, as the log does not record it: {'; '.join(spent.not_counted)}.", quiet=True)
    meaning = (
        "Measuring: of the machine, after the first step of a generation. Stalled: for saves, for other ranks and "
        "between steps. Idle: until the first step of a generation was done. What it would have cost on demand leaves "
        "out what interruptions took, so it is a lower bound."
    )
    if spent.file_systems and spent.on_demand is not None:
        meaning += " The comparison leaves out the file system on both sides."
    on_demand = [Text(f"On demand: {_on_demand_price(price)}.", quiet=True) for price in spent.on_demand_prices]
    return (Heading("Cost"), *why, Text(meaning, quiet=True), bill, *([uses] if splits else []), *on_demand, left_out)


def _saved_on_demand(spent: Cost) -> str:
    if spent.saved is None or spent.on_demand is None:
        return ""
    word = "less" if spent.saved >= 0 else "more"
    return f", {formatting.percent(abs(spent.saved))} {word} than on demand ({usd(spent.on_demand)})"


def _saving_tone(spent: Cost) -> Tone:
    if spent.saved is None:
        return "plain"
    return "good" if spent.saved >= 0 else "warning"


def _machine_row(machine: MachineCost) -> tuple[str, ...]:
    name, quantity = _machine_name(machine), f"{formatting.significant(machine.node_hours)} node-hours"
    if machine.usd is None or machine.usd_per_hour is None:
        return (name, quantity, "not known", "", "")
    price = f"{machine.usd_per_hour:,g} an hour"
    return (name, quantity, price, usd(machine.usd.total), _dated_source(machine.price_date, machine.source))


def _machine_name(machine: MachineCost) -> str:
    return f"{machine.instance}, {machine.market.replace('_', ' ')}, {machine.region}"


def _on_demand_price(price: OnDemandPrice) -> str:
    each = f"{price.instance} in {price.region}, {price.usd_per_hour:,g} USD an hour"
    return f"{each} ({_dated_source(price.price_date, price.source)})"


def _service_row(service: ServiceCost) -> tuple[str, ...]:
    each = "thousand" if service.unit == "1,000 requests" else service.unit
    quantity = f"{formatting.significant(service.quantity)} {each}s"
    price = f"{service.usd_per_unit:g} a {each}"
    return (service.what, quantity, price, usd(service.usd), _dated_source(service.price_date, service.source))


def _dated_source(day: date | None, source: str) -> str:
    return f"{day}, {source}" if day else source
