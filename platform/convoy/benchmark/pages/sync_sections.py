"""A benchmark's page on synchronisation: what it takes of a step, what to do, and what an environment brings."""

from collections.abc import Sequence

from convoy.benchmark.analysis.model import BenchReport, EnvironmentFigures, SyncFigures, SyncLevel, verdict
from convoy.benchmark.analysis.sync import LIMITS, SUITE, levels
from convoy.benchmark.pages.cases import about, charts, table
from convoy.benchmark.results.collectives import Collective
from convoy.benchmark.results.figures import SIGNIFICANT_SPEEDUP
from convoy.display import formatting
from convoy.display.page import Block, Callout, Heading, Table, Text, Tone
from convoy.stats.interval import Interval

TITLE = "Gradient synchronisation"

ENVIRONMENTS = "Environments beside each other"

_HOW = (
    "The same ranks train together, and each alone at the same time; the share is what a step takes longer together, "
    "with the update of training together given to both. It holds all that is waited for: gathers of weights, sums of "
    "gradients, the exchange of gradient norm, loss and decisions, and ranks that are behind. What computation hides "
    "is not in it."
)
_BANDWIDTH = (
    "The collectives by themselves, whole tensors, the slowest rank's time. algbw is bytes over time; busbw, by the "
    "formulas of nccl-tests, is what each rank's link carried in each direction."
)
_GANGS = (
    "An environment is fixed when a process starts, so each has gangs of its own, which took turns; a gang is one "
    "figure, and n counts pairs of gangs."
)

_MIDDLE, _HIGH = (f"{limit:.0%}".replace("%", " %") for limit in LIMITS)

_TITLES: dict[SyncLevel, str] = {
    "low": f"below {_MIDDLE}: synchronisation is no bottleneck",
    "middle": f"{_MIDDLE} to {_HIGH}: synchronisation is worth reducing",
    "high": f"above {_HIGH}: synchronisation is the bottleneck",
}
_TONES: dict[SyncLevel, Tone] = {"low": "good", "middle": "warning", "high": "bad"}

_ACTIONS: dict[SyncLevel, str] = {
    "low": "Look for speed elsewhere: the throughput suite tells each technique's effect.",
    "middle": (
        "Give each message more computation: a larger train.micro_batch where memory allows. With memory to spare, "
        "gather once per step: parallel.reshard_after_forward: false. Halve the gradients: train.reduce_dtype: bf16."
    ),
    "high": (
        "Keep the traffic within nodes: parallel.strategy: hsdp with shard_size of one node's ranks. Then a larger "
        "train.micro_batch, more of them per step without parallel.reshard_after_forward, and train.reduce_dtype: "
        "bf16. Between machines, compare the busbw below with what their network is sold for: where it is far below, "
        "the traffic may not take EFA or InfiniBand at all (NCCL_DEBUG=INFO tells which)."
    ),
}


def sync(report: BenchReport) -> tuple[Block, ...]:
    """Nothing where the suite did not run."""
    shown = [group for group in report.groups if group.suite == SUITE and any(case.rate for case in group.cases)]
    shares: list[Block] = []
    pairs: list[Block] = []
    for group in shown:
        compared = [each for each in report.environments if each.group == group.name]
        if compared:
            pairs += [Text(f"{about(group)} {_GANGS}", quiet=True), *map(_verdict, compared)]
            pairs += [*charts(group), table(group)]
            continue
        found = [each for each in report.sync if each.group == group.name]
        shares += [Text(f"{about(group)} {_HOW}", quiet=True), *map(_share, found), table(group)]
        shares += [block for each in found for block in (*_parts(each), *_collectives(each.collectives))]
    return (*([Heading(TITLE), *shares] if shares else []), *([Heading(ENVIRONMENTS), *pairs] if pairs else []))


def _share(found: SyncFigures) -> Block:
    if found.share is None:
        return Text(f"The share of synchronisation is not known: {found.why}.")
    told = (
        f"{formatting.percent(max(0.0, found.share.estimate))} of a step ({_between(found.share)}, n = {found.share.n})"
    )
    (level,) = levels(found.share.model_copy(update={"low": found.share.estimate, "high": found.share.estimate}))
    if len(found.levels) == 1:
        return Callout(f"{found.model}: {told}, {_TITLES[level]}", _ACTIONS[level], _TONES[level])
    border = " and ".join(f"“{_TITLES[each]}”" for each in found.levels)
    unsure = f"The interval reaches over a limit, and each may hold: {border}. More rounds (measure.rounds) would tell."
    return Callout(f"{found.model}: {told}", f"{unsure} By the estimate alone: {_ACTIONS[level]}", "warning")


def _between(share: Interval) -> str:
    """Below zero nothing was seen."""
    if share.low <= 0:
        return f"none to {formatting.percent(max(0.0, share.high))}"
    return formatting.bounds(share, formatting.percent)


def _parts(found: SyncFigures) -> list[Block]:
    if not found.parts:
        return []
    total = sum(found.parts.values())
    rows = tuple(
        (name, formatting.duration(seconds), formatting.percent(seconds / total) if total > 0 else "")
        for name, seconds in found.parts.items()
    )
    return [Table(("Part", "Time", "Of the step"), rows)]


def _collectives(found: Sequence[Collective]) -> list[Block]:
    if not found:
        return []
    rows = tuple(
        (
            each.operation,
            formatting.size(each.bytes),
            formatting.estimate(each.seconds, formatting.duration),
            f"{formatting.size(each.algbw)}/s",
            f"{formatting.size(each.busbw)}/s",
        )
        for each in found
    )
    return [Text(_BANDWIDTH, quiet=True), Table(("Collective", "Size", "Time", "algbw", "busbw"), rows)]


def _verdict(found: EnvironmentFigures) -> Block:
    between = f"{found.environment} over {found.base}"
    if found.speedup is None:
        return Callout(f"{between}: not known", found.why, "warning")
    told = f"{formatting.ratio(found.speedup)}, n = {found.speedup.n} pairs of gangs"
    differs = f"They differ in {', '.join(found.varied)} alone."
    if found.significant is not None:
        return _of_claim(f"{between}: {told}", differs, found.speedup, found.significant)
    words = {"more": "faster", "less": "SLOWER", "no difference": "no difference seen"}[verdict(found.speedup)]
    tone: Tone = "warning" if words == "SLOWER" else "plain"
    return Callout(f"{between}: {words}, {told}", differs, tone)


def _of_claim(title: str, differs: str, speedup: Interval, significant: bool) -> Callout:
    least = f"{SIGNIFICANT_SPEEDUP:g}×"
    if significant:
        return Callout(f"{title}: a significant speedup", f"At least {least}, as RDMA was claimed. {differs}", "good")
    more = (
        f" The interval reaches beyond {least}: more pairs would tell." if speedup.high >= SIGNIFICANT_SPEEDUP else ""
    )
    text = f"RDMA was claimed, and at least {least} was to be expected.{more} {differs}"
    return Callout(f"{title}: not a significant speedup", text, "bad")
