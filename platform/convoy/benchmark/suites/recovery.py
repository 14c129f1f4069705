"""The recovery suite: faults put into gangs of this host, with what became of each.

Its one group is no gang that measures, but a list of drills, each of which forms gangs of its own
(`drill_worker.py`). Which model is trained there is the drills' own choice, whatever the benchmark's models are.
"""

from collections.abc import Iterator

from convoy.benchmark.groups import Group, Ranks, VariantSpec
from convoy.config.benchmark import BenchConfig
from convoy.config.errors import ConfigError, nearest
from convoy.config.run import RunConfig

SUITE = "recovery"


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One for the whole benchmark; its variants are drills. Raises ConfigError for one that there is not."""
    from convoy.drills.registry import (
        DRILLS,  # what puts faults in is needed where this suite is asked for, and only there
    )

    for name in config.recovery.drills:
        if name not in DRILLS:
            raise ConfigError(f"recovery.drills = {name}: no such drill; {nearest(name, DRILLS)}")
    yield Group(
        name=SUITE,
        suite=SUITE,
        baseline=None,
        variants=tuple(VariantSpec(name=name) for name in dict.fromkeys(config.recovery.drills)),
        run=next(iter(runs.values())),
        measure=config.measure,
        recovery=config.recovery,
    )
