"""Sections of a benchmark's page on what did not run, what was not measured, and where its figures come from."""

from collections.abc import Sequence
from datetime import UTC

from convoy.benchmark.analysis.report import BenchReport, GroupFigures
from convoy.benchmark.results import collectives, values
from convoy.benchmark.results.case import Provenance
from convoy.benchmark.results.network import SUITE_NAME
from convoy.display import formatting
from convoy.display.page import Block, Code, Column, Heading, Table, Text, columns
from convoy.report.pages.sections import network_facts

IN_OTHER_SECTIONS = {
    values.WEAK, values.INDEPENDENT, values.COMMUNICATION_SECONDS, values.NETWORK_BYTES, values.LINK_BYTES_PER_SECOND,
    values.STATE_BYTES, *values.OF_LARGEST, *values.MEMORY_PARTS.values(), values.MEMORY_HOST_BYTES,
    values.MEMORY_FRAGMENTATION, values.RDMA_CLAIMED, values.COMPILE_SECONDS, *values.OF_UTILISATION,
    *values.OF_CHECKPOINTS, *values.OF_RECOVERY, values.FIRST_STEP_SECONDS,
}  # fmt: skip


def not_run(report: BenchReport) -> tuple[Block, ...]:
    """Refused and failed cases, with their reasons."""
    rows = [
        (group.suite, case.name, case.status, case.reason or "no reason was recorded")
        for group, case in report.cases
        if case.status != "measured"
    ]
    return _section("Refused and failed", ("Suite", "Case", "Status", "Reason"), rows)


def not_measured(report: BenchReport) -> tuple[Block, ...]:
    """What this machine cannot measure: each reason once, with its cases."""
    names: dict[tuple[str, str], dict[str, None]] = {}
    for _, case in report.cases:
        for reason in case.not_measured.items():
            names.setdefault(reason, {})[case.name] = None
    rows = [(*reason, ", ".join(cases)) for reason, cases in names.items()]
    return _section("Not measured here", ("What", "Why", "Cases"), rows)


def further_figures(report: BenchReport) -> tuple[Block, ...]:
    """Values that no other section shows."""
    rows = [
        (group.suite, case.name, name, formatting.significant(value))
        for group, case in report.cases
        if case.status == "measured" and group.suite != SUITE_NAME  # a figure for each size and pair, without a unit
        for name, value in sorted(case.values.items())
        if name not in IN_OTHER_SECTIONS and not name.startswith(collectives.PREFIX)
    ]
    return _section("Further figures", ("Suite", "Case", "Figure", "Value"), rows)


def _section(heading: str, headers: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> tuple[Block, ...]:
    return (Heading(heading), Table(headers, tuple(rows))) if rows else ()


def provenance_section(report: BenchReport) -> tuple[Block, ...]:
    """Hardware of each gang, and of each origin the commit, versions and environment."""
    hardware = columns(
        report.groups,
        Column("Suite", lambda g: g.suite),
        Column("Group", lambda g: g.name),
        Column("Device", lambda g: g.hardware.device),
        Column("Machines", _machines),
        Column("Ranks", lambda g: g.hardware.ranks),
        Column("Threads of a rank", lambda g: g.hardware.threads),
        Column("Cores", lambda g: g.hardware.cores),
        Column("Memory", lambda g: g.hardware.memory_bytes or None, formatting.size, missing="not known"),
        Column("Matmul, TFLOP/s", _matmul),
        *([Column("Between hosts", _carriers)] if any(g.carried_by for g in report.groups) else []),
    )
    blocks: list[Block] = [Heading("Provenance"), hardware]
    for origins in _group_compatible(report.provenance):
        rows = {"Measured": _dates_text(origins), "Commit": origins[0].commit or "not from a checkout"}
        for each in origins:
            rows |= each.versions | each.environment
        blocks.append(Table(("What", "Which"), tuple(rows.items())))
    if not any(each.environment for each in report.provenance):
        blocks.append(Text("No variable that is known to change speed was set.", quiet=True))
    return (*blocks, *([Code("\n".join(report.commands))] if report.commands else []))


def _machines(group: GroupFigures) -> str:
    hardware = group.hardware
    if group.lab:
        return f"one, with a lab of {group.lab}"
    return f"{hardware.nodes} × {hardware.instance_type}" if hardware.instance_type else str(hardware.nodes)


def _carriers(group: GroupFigures) -> str | None:
    return "; ".join(network_facts(group.carried_by)) or None


def _matmul(group: GroupFigures) -> str:
    rates = [f"{formatting.significant(rate)} ({dtype})" for dtype, rate in group.matmul_tflops.items()]
    return ", ".join(rates) or "not measured"


def _group_compatible(origins: Sequence[Provenance]) -> list[list[Provenance]]:
    """Origins of one commit that do not contradict each other: a gang lists only the packages that it used."""
    compatible: list[list[Provenance]] = []
    for origin in origins:
        for others in compatible:
            if all(_agree(origin, other) for other in others):
                others.append(origin)
                break
        else:
            compatible.append([origin])
    return compatible


def _agree(one: Provenance, other: Provenance) -> bool:
    """A version that only one has is of a package that the other did not use. A variable that only one has was not set
    for the other, so they differ."""
    shared = one.versions.keys() & other.versions.keys()
    alike = all(one.versions[name] == other.versions[name] for name in shared)
    return alike and (one.commit, one.environment) == (other.commit, other.environment)


def _dates_text(origins: Sequence[Provenance]) -> str:
    """When the first cases of each origin were measured."""
    first, last = (f"{of(each.measured for each in origins).astimezone(UTC):%Y-%m-%d %H:%M}" for of in (min, max))
    return f"{first} UTC" if first == last else f"from {first} UTC"
