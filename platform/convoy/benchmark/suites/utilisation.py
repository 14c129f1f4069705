"""The utilisation suite: what a step's time, the host's cores and the GPU's power go into, pinned to cores and not.

Both cases are the same training; the ranks' threads move to the cores of a case before each of its turns. Imports no
torch.
"""

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from convoy.benchmark.groups import Group, Ranks, VariantSpec
from convoy.benchmark.measure.step_shares import Shares
from convoy.benchmark.results import values
from convoy.config.benchmark import BenchConfig
from convoy.config.run import RunConfig

SUITE = "utilisation"

PINNED, FREE = "pinned", "not pinned"


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One for each model. runs: by the model's name. ranks: of the gang, all of which take part."""
    for model, run in runs.items():
        on_host = ranks.all if run.cluster.backend == "local" else ranks.per_node
        variants = [VariantSpec(name=FREE, pin=False)]
        if on_host > 1:  # the cores of a host's only rank are all there are
            variants.append(VariantSpec(name=PINNED, pin=True))
        yield Group(
            name=f"{SUITE}-{model}",
            suite=SUITE,
            baseline=FREE,
            variants=tuple(variants),
            run=run,
            measure=config.measure,
        )


class Host(NamedTuple):
    """What the processes of all ranks used together, over all blocks of a case."""

    user_seconds: float
    system_seconds: float
    voluntary: float
    """Switches, as `involuntary`."""
    involuntary: float


def host_values(host: Host, steps: int, seconds: float, ranks: int, cores: int) -> dict[str, float]:
    """A rank's part of a step, and the share of the cores' time. seconds: of wall time, in which the steps were made.
    cores: of all hosts."""
    each = steps * ranks
    return {
        values.USER_CPU_SECONDS: host.user_seconds / each,
        values.SYSTEM_CPU_SECONDS: host.system_seconds / each,
        values.VOLUNTARY_SWITCHES: host.voluntary / each,
        values.INVOLUNTARY_SWITCHES: host.involuntary / each,
        values.CPU_UTILISATION: (host.user_seconds + host.system_seconds) / (seconds * cores),
    }


def gpu_values(watts: float, busy: float, step_seconds: float) -> dict[str, float]:
    """watts: of all GPUs together. busy: share of the time. Of either no value where it is not a number."""
    found = {}
    if not math.isnan(watts):
        found = {values.POWER_WATTS: watts, values.ENERGY_JOULES_PER_STEP: watts * step_seconds}
    return found if math.isnan(busy) else found | {values.GPU_UTILISATION: busy}


def share_values(shares: Shares) -> dict[str, float]:
    """By the names of values."""
    parts: Mapping[values.SharedPart, float] = shares.parts
    return {values.SHARES[part]: share for part, share in parts.items()} | {values.COMMUNICATION_HIDDEN: shares.hidden}
