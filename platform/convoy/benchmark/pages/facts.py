"""Parts of a benchmark's page on what did not run, what was not measured, and where its figures come from."""

from collections.abc import Callable, Sequence
from datetime import UTC

from convoy.benchmark.analysis.model import BenchReport, CaseFigures, GroupFigures
from convoy.benchmark.results import collectives, values
from convoy.benchmark.results.case import Provenance
from convoy.display import formatting
from convoy.display.page import Block, Code, Heading, Table, Text

KNOWN_VALUES = {
    values.WEAK,
    values.INDEPENDENT,
    values.COMMUNICATION_SECONDS,
    values.NETWORK_BYTES,
    values.LINK_BYTES_PER_SECOND,
    values.STATE_BYTES,
    *values.OF_LARGEST,
    *values.MEMORY_PARTS.values(),
    values.MEMORY_HOST_BYTES,
    values.MEMORY_FRAGMENTATION,
    *values.SHARES.values(),
    values.COMMUNICATION_HIDDEN,
    values.USER_CPU_SECONDS,
    values.SYSTEM_CPU_SECONDS,
    values.VOLUNTARY_SWITCHES,
    values.INVOLUNTARY_SWITCHES,
    values.CPU_UTILISATION,
    values.GPU_UTILISATION,
    values.POWER_WATTS,
    values.ENERGY_JOULES_PER_STEP,
    values.RDMA_CLAIMED,
    *values.OF_CHECKPOINTS,
    *values.OF_RECOVERY,
}
"""Those that other parts of the page show."""


def not_run(report: BenchReport) -> tuple[Block, ...]:
    """Refused and failed cases, with their reasons."""
    rows = _of_cases(report, lambda case: [(case.status, case.reason or "no reason was told")], measured=False)
    return (Heading("Refused and failed"), Table(("Suite", "Case", "Status", "Reason"), rows)) if rows else ()


def not_measured(report: BenchReport) -> tuple[Block, ...]:
    """What this machine cannot show, each reason once with the cases that tell it."""
    found: dict[tuple[str, str], list[str]] = {}
    for group in report.groups:
        for case in group.cases:
            for what, why in case.not_measured.items():
                found.setdefault((what, why), []).append(case.name)
    rows = tuple((what, why, ", ".join(dict.fromkeys(names))) for (what, why), names in found.items())
    return (Heading("Not measured here"), Table(("What", "Why", "Cases"), rows)) if rows else ()


def further(report: BenchReport) -> tuple[Block, ...]:
    """Values of suites that no other part shows."""
    rows = _of_cases(
        report,
        lambda case: [
            (name, formatting.significant(value))
            for name, value in sorted(case.values.items())
            if name not in KNOWN_VALUES and not name.startswith(collectives.PREFIX)
        ],
    )
    return (Heading("Further figures"), Table(("Suite", "Case", "Figure", "Value"), rows)) if rows else ()


def provenance(report: BenchReport) -> tuple[Block, ...]:
    """Hardware of each gang, and of each origin the commit, versions and environment."""
    blocks: list[Block] = [Heading("Provenance"), Table(_HARDWARE, tuple(_hardware(group) for group in report.groups))]
    for origins in _alike(report.provenance):
        rows = {"Measured": _when(origins), "Commit": origins[0].commit or "not from a checkout"}
        for each in origins:
            rows |= each.versions | each.environment
        blocks.append(Table(("What", "Which"), tuple(rows.items())))
    if not any(each.environment for each in report.provenance):
        blocks.append(Text("No variable that is known to change speed was set.", quiet=True))
    return (*blocks, *([Code("\n".join(report.commands))] if report.commands else []))


def _alike(found: Sequence[Provenance]) -> list[list[Provenance]]:
    """Those of one commit that contradict each other in nothing: a gang tells of the packages that it used."""
    alike: list[list[Provenance]] = []
    for each in found:
        for others in alike:
            if all(_agree(each, other) for other in others):
                others.append(each)
                break
        else:
            alike.append([each])
    return alike


def _agree(one: Provenance, other: Provenance) -> bool:
    """A version that only one tells is of a package that the other did not use; a variable that only one tells was not
    set for the other."""
    shared = one.versions.keys() & other.versions.keys()
    alike = all(one.versions[name] == other.versions[name] for name in shared)
    return alike and (one.commit, one.environment) == (other.commit, other.environment)


def _when(origins: Sequence[Provenance]) -> str:
    """Of the first cases of each."""
    first, last = (f"{of(each.measured for each in origins).astimezone(UTC):%Y-%m-%d %H:%M}" for of in (min, max))
    return f"{first} UTC" if first == last else f"from {first} UTC"


_HARDWARE = ("Suite", "Group", "Device", "Machines", "Ranks", "Threads of a rank", "Cores", "Memory", "Matmul, TFLOP/s")


def _hardware(group: GroupFigures) -> tuple[str, ...]:
    hardware = group.hardware
    machines = f"{hardware.nodes} × {hardware.instance_type}" if hardware.instance_type else str(hardware.nodes)
    rates = [f"{formatting.significant(rate)} ({dtype})" for dtype, rate in group.matmul_tflops.items()]
    return (
        group.suite,
        group.name,
        hardware.device,
        machines,
        str(hardware.ranks),
        str(hardware.threads),
        str(hardware.cores),
        formatting.size(hardware.memory_bytes) if hardware.memory_bytes else "not known",
        ", ".join(rates) or "not measured",
    )


def _of_cases(
    report: BenchReport, told: Callable[[CaseFigures], list[tuple[str, str]]], measured: bool = True
) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (group.suite, case.name, *each)
        for group in report.groups
        for case in group.cases
        if (case.status == "measured") == measured
        for each in told(case)
    )
