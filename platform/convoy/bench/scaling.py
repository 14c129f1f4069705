"""The scaling suite: the same training on more and more ranks of one gang.

All is compared with one rank that trains alone. Weak scaling gives each rank as many sequences as that one has; strong
scaling shares its sequences out. As many independent trainings of one rank as the gang has ranks, all at once, are the
second reference: what they lose against a single one, they lose to the memory and the caches that a host's ranks share,
and not to communication.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from convoy.bench.groups import Group, VariantSpec
from convoy.config.bench import BenchConfig
from convoy.config.run import RunConfig
from convoy.results.case import Block
from convoy.results.values import COMMUNICATION_SECONDS, INDEPENDENT, NETWORK_BYTES, WEAK

ALONE = "1 rank"


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: int) -> Iterator[Group]:
    """One for each model; none for a gang of one rank. runs: by the model's name."""
    if ranks == 1:
        return
    for model, run in runs.items():
        yield Group(
            name=f"scaling-{model}",
            suite="scaling",
            baseline=ALONE,
            variants=tuple(variants_of(run.train.global_batch, ranks)),
            run=run,
            measure=config.measure,
        )


def variants_of(global_batch: int, ranks: int) -> Iterator[VariantSpec]:
    """One rank alone; 2, 4 … and all ranks, of those that divide them, weak and strong; the independent trainings.

    global_batch: of all ranks together in weak scaling.
    """
    each = max(1, global_batch // ranks)
    yield VariantSpec(name=ALONE, ranks=1, changes=_batch(each))
    yield VariantSpec(name=independent(ranks), ranks=1, at_once=True, changes=_batch(each), values={INDEPENDENT: 1.0})
    for n in [n for n in range(2, ranks + 1) if ranks % n == 0 and (n == ranks or n & (n - 1) == 0)]:
        yield VariantSpec(name=weak(n), ranks=n, changes=_batch(each * n), values={WEAK: 1.0})
        if each >= n:
            yield VariantSpec(name=strong(n), ranks=n, changes=_batch(each), values={WEAK: 0.0})


def weak(ranks: int) -> str:
    """Name of a case."""
    return f"{ranks} ranks, weak"


def strong(ranks: int) -> str:
    """Name of a case."""
    return f"{ranks} ranks, strong"


def independent(ranks: int) -> str:
    """Name of a case."""
    return f"{ranks} jobs of 1 rank"


def further_values(blocks: Mapping[str, Sequence[Block]], spec: VariantSpec, ranks: int) -> dict[str, float]:
    """What the blocks of a group tell of one of its cases beside their times. ranks: of the gang.

    How much longer a step of all ranks in weak scaling takes than one of as many independent trainings of the same size
    at once is what communication costs: nothing else differs, but that each rank updates its share of the weights only.
    """
    found = dict(spec.values)
    own = blocks[spec.name]
    sent = [block.network_bytes for block in own if block.network_bytes is not None]
    taking_part = ranks if spec.at_once else spec.ranks or ranks
    if sent:
        found[NETWORK_BYTES] = statistics.median(sent) / taking_part
    if spec.name == weak(ranks):
        others = {block.number: block.seconds for block in blocks[independent(ranks)]}
        lost = [block.seconds - others[block.number] for block in own if block.number in others]
        found[COMMUNICATION_SECONDS] = max(0.0, statistics.median(lost))
    return found


def _batch(sequences: int) -> dict[str, dict[str, int]]:
    return {"train": {"global_batch": sequences}}
