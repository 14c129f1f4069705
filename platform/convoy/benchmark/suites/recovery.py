"""The recovery suite: faults put into gangs of this host, with what became of each.

Its one group is no gang that measures, but a list of drills, each of which forms gangs of its own
(`drill_worker.py`). Which model is trained there is the drills' own choice, whatever the benchmark's models are.
"""

from collections.abc import Iterator, Sequence

from convoy.benchmark.analysis.campaign import campaign
from convoy.benchmark.analysis.checkpoints import checkpoints
from convoy.benchmark.analysis.recovery import SUITE as NAME
from convoy.benchmark.analysis.recovery import drills
from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.pages import recovery_sections
from convoy.benchmark.results.case import Case
from convoy.catalog.prices import PriceBook
from convoy.config.benchmark import BenchConfig
from convoy.config.errors import ConfigError, nearest
from convoy.config.run import RunConfig


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One for the whole benchmark; its variants are drills. Raises ConfigError for one that there is not."""
    from convoy.drills.registry import (
        DRILLS,  # what puts faults in is needed where this suite is asked for, and only there
    )

    for name in config.recovery.drills:
        if name not in DRILLS:
            raise ConfigError(f"recovery.drills = {name}: no such drill; {nearest(name, DRILLS)}")
    yield Group(
        name=SUITE.name,
        suite=SUITE.name,
        baseline=None,
        variants=tuple(VariantSpec(name=name) for name in dict.fromkeys(config.recovery.drills)),
        run=next(iter(runs.values())),
        measure=config.measure,
        recovery=config.recovery,
    )


def figures(cases: Sequence[Case], prices: PriceBook) -> dict[str, object]:
    """What drills showed, and the campaign that is simulated with it."""
    faults = drills(cases)
    return {"recovery": faults, "campaign": campaign(cases, checkpoints(cases), faults, prices)}


SUITE = Suite(
    name=NAME,
    title="Recovery",
    meaning="faults put into gangs of this host, and what became of each",
    groups=groups,
    figures=figures,
    sections=lambda report: (*recovery_sections.recovery(report), *recovery_sections.campaign(report)),
)
