"""Blocks of a benchmark's page on environments that were compared, in gangs that took turns."""

from collections.abc import Sequence

from convoy.benchmark.analysis.report import (
    TOTAL_STEPS,
    CollectiveSpeedup,
    EnvironmentFigures,
    EnvironmentSeconds,
    GroupFigures,
    verdict,
)
from convoy.benchmark.pages.cases import charts, describe_group, table
from convoy.benchmark.results.figures import SIGNIFICANT_SPEEDUP
from convoy.display import formatting
from convoy.display.page import Block, Callout, Column, Table, Text, Tone, columns
from convoy.stats.interval import Interval

_GANGS = (
    "An environment is fixed when a process starts, so each has gangs of its own, which took turns; a gang is one "
    "figure, and n counts pairs of gangs."
)
_SPEEDUPS = (
    "How many times as fast an environment is as the first one, with 95 % intervals over pairs of gangs. Throughput is "
    "tokens per second. Synchronisation is the time of a step in which a collective was in progress, whether "
    "computation hid it or not, from a trace of some steps at the end of each gang; it includes waiting for slower "
    f"ranks. Total time is that of {TOTAL_STEPS:,} steps, computed from each gang's start-up (joining, building the "
    "model, the first step) and its median step."
)
_COLLECTIVES = (
    "The collectives by themselves in each environment, for whole tensors, with the slowest rank's time: medians over "
    "gangs. busbw, by the formulas of nccl-tests, is what each rank's link carried in each direction."
)


def compared_blocks(group: GroupFigures, compared: Sequence[EnvironmentFigures]) -> list[Block]:
    """A verdict on each environment, the three speedups, the group's cases, and what was measured of each. compared:
    all of the group, which have one environment to be compared with."""
    blocks: list[Block] = [Text(f"{describe_group(group)} {_GANGS}", quiet=True), *map(_verdict, compared)]
    if known := [each for each in compared if each.speedup is not None]:
        blocks += [_speedups(known), Text(_SPEEDUPS, quiet=True), *_reasons(known)]
    blocks += [*charts(group), table(group), *_times(known)]
    if measured := [each for each in known if each.collectives]:
        blocks += [Text(_COLLECTIVES, quiet=True), *map(_collectives, measured)]
    return blocks


def _speedups(compared: Sequence[EnvironmentFigures]) -> Table:
    def column(title: str, of: str) -> Column[EnvironmentFigures]:
        return Column(title, lambda each: getattr(each, of), _speedup_text, missing="not known")

    return columns(
        compared,
        Column("Environment", lambda each: f"{each.environment} over {each.base}"),
        column("Throughput", "speedup"),
        column("Synchronisation", "sync_speedup"),
        column("Total time", "total_speedup"),
    )


def _speedup_text(speedup: Interval) -> str:
    text = f"{formatting.ratio(speedup)}, n = {speedup.n}"
    return f"no difference detected: {text}" if verdict(speedup) == "no difference" else text


def _reasons(compared: Sequence[EnvironmentFigures]) -> list[Text]:
    """Why a speedup is not known."""
    return [
        Text(f"The speedup of {each.environment} in {what} is not known: {why}.", quiet=True)
        for each in compared
        for what, why in each.not_known.items()
    ]


def _times(compared: Sequence[EnvironmentFigures]) -> list[Table]:
    """Of the first environment and of the others; none where no gang was asked, as in results of earlier versions."""
    if not compared:
        return []
    rows = [(compared[0].base, compared[0].base_seconds), *((each.environment, each.seconds) for each in compared)]
    if all(seconds == EnvironmentSeconds() for _, seconds in rows):
        return []

    def column(title: str, of: str) -> Column[tuple[str, EnvironmentSeconds]]:
        return Column(title, lambda row: getattr(row[1], of), _duration, missing="not known")

    name = Column[tuple[str, EnvironmentSeconds]]("Environment", lambda row: row[0])
    start_up, total = column("Start-up", "start_up"), column(f"{TOTAL_STEPS:,} steps (computed)", "total")
    return [columns(rows, name, column("Synchronisation of a step", "sync"), start_up, total)]


def _duration(seconds: Interval) -> str:
    return formatting.estimate(seconds, formatting.duration)


def _collectives(figures: EnvironmentFigures) -> Table:
    base, own = figures.base, figures.environment
    return columns(
        figures.collectives,
        Column[CollectiveSpeedup]("Collective", lambda each: each.own.operation),
        Column("Size", lambda each: each.own.bytes, formatting.size),
        Column(f"Time, {base}", lambda each: each.base.seconds, _duration),
        Column(f"Time, {own}", lambda each: each.own.seconds, _duration),
        Column(f"busbw, {base}", lambda each: each.base.busbw, formatting.bandwidth),
        Column(f"busbw, {own}", lambda each: each.own.busbw, formatting.bandwidth),
        Column(f"{own} over {base}", lambda each: each.speedup, _speedup_text),
    )


def _verdict(figures: EnvironmentFigures) -> Block:
    names = f"{figures.environment} over {figures.base}"
    if figures.speedup is None:
        return Callout(f"{names}: not known", figures.why, "warning")
    speedup = f"{formatting.ratio(figures.speedup)}, n = {figures.speedup.n} pairs of gangs"
    differences = f"They differ only in {', '.join(figures.varied)}."
    if figures.significant is not None:
        return _rdma_claim(f"{names}: {speedup}", differences, figures.speedup, figures.significant)
    words = {"more": "faster", "less": "SLOWER", "no difference": "no difference detected"}[verdict(figures.speedup)]
    tone: Tone = "warning" if words == "SLOWER" else "plain"
    return Callout(f"{names}: {words}, {speedup}", differences, tone)


def _rdma_claim(title: str, differences: str, speedup: Interval, significant: bool) -> Callout:
    least = f"{SIGNIFICANT_SPEEDUP:g}×"
    unsure = not significant and speedup.high >= SIGNIFICANT_SPEEDUP
    more = f" The interval reaches beyond {least}: more pairs would decide." if unsure else ""
    text = f"RDMA was claimed, so at least {least} was expected.{more} {differences}"
    if significant:
        return Callout(f"{title}: a significant speedup", text, "good")
    return Callout(f"{title}: not a significant speedup", text, "bad")
