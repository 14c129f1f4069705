"""The scaling suite: the same training on more and more ranks of one gang.

All is compared with one rank that trains alone. Weak scaling gives each rank as many sequences as that one has; strong
scaling shares its sequences out. As many independent trainings of one rank as the gang has ranks, all at once, are the
second reference: what they lose against a single one, they lose to the memory and the caches that a host's ranks share,
and not to communication.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convoy.bench.groups import Group, Ranks, VariantSpec
from convoy.config.bench import BenchConfig
from convoy.config.run import RunConfig
from convoy.results.case import Block
from convoy.results.values import COMMUNICATION_SECONDS, INDEPENDENT, NETWORK_BYTES, WEAK

ALONE = "1 rank"


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One for each model; none for a gang of one rank. runs: by the model's name."""
    if ranks.all == 1:
        return
    for model, run in runs.items():
        yield Group(
            name=f"scaling-{model}",
            suite="scaling",
            baseline=ALONE,
            variants=tuple(variants_of(run.train.global_batch, ranks, run.parallel.shard_size)),
            run=run,
            measure=config.measure,
        )


def variants_of(global_batch: int, ranks: Ranks, shard_size: int | None = None) -> Iterator[VariantSpec]:
    """One rank alone; the independent trainings; more and more ranks, weak and strong.

    global_batch: of all ranks together in weak scaling. shard_size: of hsdp; fewer ranks shard over all of them.
    """
    each = max(1, global_batch // ranks.all)

    def variant(name: str, n: int, batch: int, told: dict[str, float], *, at_once: bool = False) -> VariantSpec:
        changes: dict[str, Any] = {"train": {"global_batch": batch}}
        if shard_size is not None and n % shard_size:
            changes["parallel"] = {"shard_size": n}
        return VariantSpec(name=name, ranks=n, at_once=at_once, changes=changes, values=told)

    yield variant(ALONE, 1, each, {})
    yield variant(independent(ranks.all), 1, each, {INDEPENDENT: 1.0}, at_once=True)
    for n in sizes(ranks):
        yield variant(weak(n), n, each * n, {WEAK: 1.0})
        if each >= n:
            yield variant(strong(n), n, each, {WEAK: 0.0})


def sizes(ranks: Ranks) -> list[int]:
    """More than one rank: all, and 2, 4, 8 … where so many divide them and fill parts of a node, or whole nodes."""
    doubled = [2**i for i in range(1, ranks.all.bit_length())]
    fitting = [n for n in doubled if ranks.all % n == 0 and (n % ranks.per_node == 0 or ranks.per_node % n == 0)]
    return sorted({*fitting, ranks.all})


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
