"""The scaling suite: the same training on more and more ranks of one gang.

All is compared with one rank that trains alone, or with as few as have room for the model. Weak scaling gives each rank
as many sequences as one of these has; strong scaling shares their sequences out. As many independent trainings of that
size as the gang has room for, all at once, are the second reference: what they lose against a single one, they lose to
the memory and the caches that a host's ranks share, and not to communication.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convoy.benchmark.analysis import scaling
from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.memory_estimate import NOTHING, memories
from convoy.benchmark.pages import scaling_sections
from convoy.benchmark.placement import states_fit
from convoy.benchmark.results.case import Block
from convoy.benchmark.results.figures import exposed_seconds
from convoy.benchmark.results.values import COMMUNICATION_SECONDS, INDEPENDENT, NETWORK_BYTES, WEAK
from convoy.config.benchmark import BenchConfig
from convoy.config.run import RunConfig


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One for each model; none where only the whole gang has room for it, as on one rank. runs: by the model's name."""
    for model, run in runs.items():
        fewest = fewest_ranks(run, ranks)
        if fewest == ranks.all:
            continue
        yield Group(
            name=f"scaling-{model}",
            suite=SUITE.name,
            baseline=alone(fewest),
            variants=tuple(variants_of(run.train.global_batch, ranks, run.parallel.shard_size, fewest)),
            run=run,
            measure=config.measure,
            whole=True,
        )


def fewest_ranks(run: RunConfig, ranks: Ranks) -> int:
    """With which all cases together have room: rank 0 has a part in each of them."""
    if ranks.memory_bytes is None:
        return 1
    for n in [1, *sizes(ranks)]:
        specs = variants_of(run.train.global_batch, ranks, run.parallel.shard_size, n)
        if states_fit((memories(spec, run, ranks) or NOTHING for spec in specs), ranks):
            return n
    return ranks.all


def variants_of(
    global_batch: int, ranks: Ranks, shard_size: int | None = None, fewest: int = 1
) -> Iterator[VariantSpec]:
    """The fewest ranks alone; the independent trainings; more and more ranks, weak and strong.

    global_batch: of all ranks together in weak scaling. shard_size: of hsdp; fewer ranks shard over all of them.
    """
    each = max(1, global_batch // ranks.all)

    def variant(name: str, n: int, batch: int, told: dict[str, float], *, at_once: bool = False) -> VariantSpec:
        changes = {"train": {"global_batch": batch}, **_sharded(n, shard_size)}
        return VariantSpec(name=name, ranks=n, at_once=at_once, changes=changes, values=told)

    shared = each * fewest
    yield variant(alone(fewest), fewest, shared, {})
    yield variant(independent(ranks.all // fewest, fewest), fewest, shared, {INDEPENDENT: 1.0}, at_once=True)
    for n in sizes(ranks):
        if n > fewest:
            yield variant(weak(n), n, each * n, {WEAK: 1.0})
            if shared >= n:
                yield variant(strong(n), n, shared, {WEAK: 0.0})


def _sharded(ranks: int, shard_size: int | None) -> dict[str, Any]:
    """What changes of `parallel` where fewer ranks train together."""
    return {"parallel": {"shard_size": ranks}} if shard_size is not None and ranks % shard_size else {}


def sizes(ranks: Ranks) -> list[int]:
    """More than one rank: all, and 2, 4, 8 … where so many divide them and fill parts of a node, or whole nodes."""
    doubled = [2**i for i in range(1, ranks.all.bit_length())]
    fitting = [n for n in doubled if ranks.all % n == 0 and (n % ranks.per_node == 0 or ranks.per_node % n == 0)]
    return sorted({*fitting, ranks.all})


def alone(ranks: int) -> str:
    """Name of a case."""
    return _counted(ranks)


def weak(ranks: int) -> str:
    """Name of a case."""
    return f"{ranks} ranks, weak"


def strong(ranks: int) -> str:
    """Name of a case."""
    return f"{ranks} ranks, strong"


def independent(jobs: int, ranks: int) -> str:
    """Name of a case. ranks: of each."""
    return f"{jobs} jobs of {_counted(ranks)}"


def _counted(ranks: int) -> str:
    return f"{ranks} rank{'' if ranks == 1 else 's'}"


def further_values(
    blocks: Mapping[str, Sequence[Block]], spec: VariantSpec, variants: Sequence[VariantSpec], ranks: int
) -> dict[str, float]:
    """What the blocks of a group tell of one of its cases beside their times. ranks: of the gang.

    What communication takes of a step of all ranks in weak scaling is told beside as many independent trainings of one
    rank at once, by the arithmetic of `sync_share` (`results/figures.py`). Trainings of several ranks communicate
    themselves, and tell nothing of it.
    """
    found = dict(spec.values)
    own = blocks[spec.name]
    sent = [block.network_bytes for block in own if block.network_bytes is not None]
    taking_part = ranks if spec.at_once else spec.ranks or ranks
    if sent:
        found[NETWORK_BYTES] = statistics.median(sent) / taking_part
    beside = [other.name for other in variants if other.at_once and other.ranks == 1]
    if spec.name == weak(ranks) and beside:
        others = {block.number: block for block in blocks[beside[0]]}
        pairs = [(block, others[block.number]) for block in own if block.number in others]
        found[COMMUNICATION_SECONDS] = max(0.0, exposed_seconds(pairs))
    return found


SUITE = Suite(
    name=scaling.SUITE,
    title="Scaling",
    meaning="the same training on more and more ranks of one gang",
    groups=groups,
    fewest_ranks=2,
    measures=frozenset({"communication"}),
    figures=lambda cases, _: {"scaling": scaling.scaling(cases)},
    comparison=scaling_sections.scaling,
)
