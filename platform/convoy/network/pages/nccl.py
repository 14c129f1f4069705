"""The page of `convoy net log`: the network that carried each rank's traffic, by NCCL's log."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from convoy.display.formatting import plural
from convoy.display.page import Block, Callout, Column, Heading, Page, Text, Tone, columns
from convoy.network.nccl.verdict import LogReport, RankReport, Verdict, carrier_name

_TITLE = "What NCCL used"

_TONES: dict[Verdict, Tone] = {"tcp": "bad", "unknown": "warning", "rdma": "warning"}

Key = TypeVar("Key", bound=Hashable)


def log_page(log: LogReport) -> Page:
    """A row for each group of ranks that are alike, what they used, why the verdict is what it is, and the fixes."""
    table = columns(
        _grouped(
            log.ranks, lambda report: (report.verdict, carrier_name(report.verdict, report.carrier), _used(report))
        ).values(),
        Column("ranks", rank_list),
        Column("verdict", lambda ranks: ranks[0].verdict),
        Column("between hosts", lambda ranks: carrier_name(ranks[0].verdict, ranks[0].carrier)),
        Column("channels", lambda ranks: ", ".join(sorted({path for each in ranks for path in each.paths}))),
    )
    used = [Text(f"{_subject(ranks)}: {text}.") for text, ranks in _grouped(log.ranks, _used).items() if text]
    reasons = _grouped(log.ranks, lambda report: report.why).items()
    why = [Text(f"{_subject(ranks)}: {reason}.", quiet=True) for reason, ranks in reasons]
    return Page(_TITLE, (Heading(_TITLE, level=1), table, *used, *why, *advice(log.ranks)))


def advice(reports: Iterable[RankReport]) -> tuple[Block, ...]:
    """The first cause of each verdict that could be better, and its fix."""
    fixable = [report for report in reports if report.fix]
    return tuple(
        Callout(
            f"{_subject(ranks)}: {carrier_name(ranks[0].verdict, ranks[0].carrier)}",
            f"First cause: {ranks[0].cause.rstrip('. ')}. {ranks[0].fix}" if ranks[0].cause else str(ranks[0].fix),
            _TONES[ranks[0].verdict],
        )
        for ranks in _grouped(fixable, lambda report: (report.verdict, report.cause, report.fix)).values()
    )


def rank_list(reports: Sequence[RankReport]) -> str:
    """The ranks of reports as ranges, such as `0-3, 5`; `8 on 2 hosts` if the log does not give their ranks."""
    runs: list[list[int]] = []
    for rank in sorted(report.rank for report in reports if report.rank is not None):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs) or _unnumbered(reports)


def _subject(reports: Sequence[RankReport]) -> str:
    if all(report.rank is None for report in reports) and any(report.host for report in reports):
        return _unnumbered(reports).replace(" on", f" rank{'s' if len(reports) > 1 else ''} on", 1)
    return f"{'Rank' if len(reports) == 1 else 'Ranks'} {rank_list(reports)}"


def _unnumbered(reports: Sequence[RankReport]) -> str:
    hosts = sorted({report.host for report in reports if report.host})
    return f"{len(reports)} on {hosts[0] if len(hosts) == 1 else f'{len(hosts)} hosts'}" if hosts else "?"


def _used(report: RankReport) -> str:
    """Versions and choices: `NCCL 2.27.7+cuda12.4, network AWS Libfabric, provider efa, 4 NICs, 32 ranks, 4 nodes`."""
    provider = report.provider if report.fabric in (None, report.provider) else f"{report.provider} ({report.fabric})"
    facts = {
        "NCCL {}": report.nccl, "aws-ofi-nccl {}": report.plugin, "network {}": report.network,
        "provider {}": provider, "protocol {}": report.protocol,
        "{}": None if report.nics is None else plural(report.nics, "NIC"), "{} ranks": report.ranks,
        "{} nodes": report.nodes,
    }  # fmt: skip
    return ", ".join(form.format(fact) for form, fact in facts.items() if fact is not None)


def _grouped(reports: Iterable[RankReport], key: Callable[[RankReport], Key]) -> dict[Key, list[RankReport]]:
    groups: dict[Key, list[RankReport]] = {}
    for report in reports:
        groups.setdefault(key(report), []).append(report)
    return groups
