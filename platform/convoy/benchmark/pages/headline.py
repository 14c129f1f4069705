"""The top of a benchmark's page: what must be read first, and the numbers that matter most."""

from datetime import UTC

from convoy.benchmark.analysis.cost import preferred_offer
from convoy.benchmark.analysis.report import (
    BenchReport,
    CaseFigures,
    GroupFigures,
    TokenPrice,
    is_valid_training,
    verdict,
)
from convoy.benchmark.pages import network
from convoy.benchmark.results.values import BASELINES, SHARDED_BASELINE
from convoy.display import formatting
from convoy.display.page import Block, Callout, Tone, Value, Values

OURS = "ours"
"""Case of the throughput suite: Convoy as it is configured."""


def summary_line(report: BenchReport) -> str:
    """The hardware, the days and the number of cases. What was refused before it began has no device."""
    known = [group for group in report.groups if group.hardware.machine]
    hardware = list(dict.fromkeys(hardware_of(group) for group in known))
    days = sorted({str(each.measured.astimezone(UTC).date()) for each in report.provenance})
    n = sum(len(group.cases) for group in report.groups)
    return " · ".join([*hardware, " to ".join(dict.fromkeys([days[0], days[-1]])), formatting.plural(n, "case")])


def hardware_of(group: GroupFigures) -> str:
    """`4 × p4d.24xlarge, 32 ranks`, or the device where the machine has no name; of a lab, the machine it is on."""
    hardware = group.hardware
    machine = hardware.instance_type or hardware.device
    if group.lab:
        return f"lab on one {machine} ({group.lab}), {formatting.plural(hardware.ranks, 'rank')}"
    nodes = "" if hardware.nodes == 1 else f"{hardware.nodes} × "
    return f"{nodes}{machine}, {formatting.plural(hardware.ranks, 'rank')}"


def warnings(report: BenchReport) -> tuple[Block, ...]:
    """What the network suite found wrong, cases whose losses differ from their baseline's, and cases that were still
    drifting."""
    blocks: list[Block] = [] if report.network is None else [*network.callouts(report.network)]
    for group, case in report.cases:
        if case.losses == "differ":
            difference = case.loss_difference
            by = "not finite" if difference is None else f"up to {formatting.percent(difference)} off"
            text = f"Its losses are {by} on the same data. It does not compute the same, so its speed means nothing."
            title = f"{case.name} ({group.suite}, {group.name}): losses differ from those of {case.baseline}"
            blocks.append(Callout(title, text, "bad"))
    drifting = [(group, case) for group, case in report.cases if not case.steady]
    if drifting:
        names = ", ".join(f"{case.name} ({group.suite})" for group, case in drifting)
        steps = formatting.plural(max(case.warm_up_steps for _, case in drifting), "step")
        text = f"{names}: warm-up ended after {steps} regardless. Raise measure.warm_up_most."
        blocks.append(Callout("Step times were still drifting", text, "warning"))
    return tuple(blocks)


def values(report: BenchReport) -> Values:
    """Figures of the main case, and of the whole benchmark."""
    main = main_case(report)
    if main is None and (bandwidths := _bus_bandwidths(report)):
        return Values((*bandwidths, _case_count(report)))
    if main is None:
        return Values((Value("Throughput", "—", "no case was measured", "warning"), _case_count(report)))
    group, case = main
    own = [_throughput(group, case), _speedup(group, case), _mfu(case), _memory(case), _scaling(report), _cost(report)]
    return Values((*filter(None, own), _case_count(report)))


def _bus_bandwidths(report: BenchReport) -> list[Value]:
    """Of each collective the best at the largest size that is not above its bound, where the network alone was
    measured."""
    found = []
    for each in report.network.collectives if report.network is not None else ():
        largest = max((at.size for case in each.algorithms for at in case.sizes), default=0)
        cases = [(case, at) for case in each.algorithms if (at := case.at(largest)) is not None and not at.above_bound]
        if cases:
            case, at = max(cases, key=lambda pair: pair[1].busbw.estimate)
            share = "" if at.bound_share is None else f", {formatting.percent(at.bound_share.estimate)} of the bound"
            lab = "lab, " if each.lab else ""
            where = f"{lab}busbw of {formatting.buffer_size(largest)}, {case.name}{share}"
            found.append(Value(each.operation, formatting.bandwidth(at.busbw.estimate), where))
    return found


def main_case(report: BenchReport) -> tuple[GroupFigures, CaseFigures] | None:
    """Ours, or the fastest case that computes what it should, of the largest model of the first suite with such a
    case."""
    for suite in dict.fromkeys(group.suite for group in report.groups):
        for group in sorted((g for g in report.groups if g.suite == suite), key=lambda g: -g.parameters):
            if cases := [case for case in group.cases if is_valid_training(case)]:
                return group, max(cases, key=lambda case: (case.name == OURS, case.rate))
    return None


def _throughput(group: GroupFigures, case: CaseFigures) -> Value:
    rate = case.tokens_per_second
    assert rate is not None
    form = formatting.rate_of(group.unit)
    bounds = formatting.bounds(rate, form)
    return Value("Throughput", form(rate.estimate), f"{bounds}, n = {rate.n}; {case.name}, {group.model}")


def _speedup(group: GroupFigures, case: CaseFigures) -> Value | None:
    """The speedup over the frozen baseline, if there is one, else over the case's own baseline."""
    frozen = [c for c in group.cases if c.name in BASELINES and c.baseline == case.name and c.losses != "differ"]
    speedup, base = case.speedup, case.baseline
    if frozen and frozen[0].speedup and frozen[0].speedup.low > 0:
        speedup, base = (
            frozen[0].speedup.inverse(),
            f"{frozen_baseline_text(group, frozen[0].name)} (the {frozen[0].name})",
        )
    if speedup is None:
        return None
    result = verdict(speedup)
    tone: Tone = "good" if result == "more" else "warning" if result == "less" else "plain"
    value, _, bounds = formatting.ratio(speedup).partition(" ")
    words = f"{case.name} is {value} as fast as {base}"
    if result == "no difference":
        words = f"no difference detected between {case.name} and {base}"
    return Value("Speedup", value, f"{words}; {bounds[1:-1]}, n = {speedup.n}", tone)


def frozen_baseline_text(group: GroupFigures, name: str) -> str:
    """What the frozen baseline of this name runs."""
    if name == SHARDED_BASELINE:
        return "transformers in fp32 with accelerate's FSDP"
    return f"transformers in fp32{' with DDP' if group.hardware.ranks > 1 else ''}"


def _mfu(case: CaseFigures) -> Value:
    computed = "" if case.flops_per_second is None else f", {formatting.flops(case.flops_per_second)} of all ranks,"
    if case.mfu is not None:
        return Value("MFU", formatting.percent(case.mfu), f"{case.name}: model FLOP/s{computed} over the dense peak")
    if case.matmul_share is not None:
        share = formatting.percent(case.matmul_share)
        return Value("Share of matmul rate", share, f"{case.name}: model FLOP/s{computed} over a plain matmul here")
    return Value("MFU", "—", "not shown: this device's peak is not known")


def _memory(case: CaseFigures) -> Value | None:
    if case.memory_peak_bytes is None:
        return None
    return Value("Memory peak", formatting.size(case.memory_peak_bytes), f"{case.name}, highest of its ranks")


def _scaling(report: BenchReport) -> Value | None:
    """The efficiency on the most ranks, of weak scaling if it was measured."""
    points = [(p, p.efficiency) for p in report.scaling if p.efficiency is not None and p.kind != "independent"]
    if not points:
        return None
    point, efficiency = max(points, key=lambda each: (each[0].ranks, each[0].kind == "weak"))
    relative = f" relative to {point.relative_to}" if point.relative_to is not None and point.relative_to > 1 else ""
    text = f"{formatting.bounds(efficiency, formatting.percent)}; {point.kind}, {point.ranks} ranks{relative}"
    return Value("Scaling efficiency", formatting.percent(efficiency.estimate), text)


def _cost(report: BenchReport) -> Value:
    priced = [(preferred_offer(cost), cost) for cost in report.costs if cost.offers]
    if not priced:
        why = report.costs[0].why if report.costs else "no rate in tokens was measured"
        return Value("Cost", "—", f"not known: {why}")
    offer, cost = min(priced, key=lambda each: each[0].usd_per_million_tokens.estimate)
    usd = f"{formatting.significant(offer.usd_per_million_tokens.estimate)} USD"
    where = f"{cost.machines}, {market_text(offer)}, price of {offer.price_date}"
    interrupted = "; interruptions not counted" if offer.market == "spot" else ""
    return Value("Cost", usd, f"per million tokens, {cost.model}; {where}{interrupted}")


def market_text(offer: TokenPrice) -> str:
    return offer.market.replace("_", "-")


def _case_count(report: BenchReport) -> Value:
    statuses = [case.status for _, case in report.cases]
    others = [f"{statuses.count(status)} {status}" for status in ("refused", "failed") if status in statuses]
    text = ", ".join(others) or "none refused, none failed"
    return Value("Cases measured", str(statuses.count("measured")), text, "bad" if "failed" in statuses else "plain")
