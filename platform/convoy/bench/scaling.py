"""The scaling suite: the same training on more and more ranks of one gang.

Weak scaling gives each rank as many sequences however many there are; strong scaling shares the same ones out. As many
independent trainings of one rank as the gang has ranks, all at once, are the reference: what they lose against a single
one, they lose to the memory and the caches that a host's ranks share, and not to communication.
"""

from collections.abc import Iterator

from convoy.bench.groups import Group, VariantSpec
from convoy.config.bench import BenchConfig
from convoy.config.run import RunConfig


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: int) -> Iterator[Group]:
    """One for each model; none for a gang of one rank. runs: by the model's name."""
    if ranks == 1:
        return
    for model, run in runs.items():
        variants = tuple(variants_of(run.train.global_batch, ranks))
        yield Group(
            name=f"scaling-{model}",
            suite="scaling",
            baseline=named(1),
            variants=variants,
            run=run,
            measure=config.measure,
        )


def variants_of(global_batch: int, ranks: int) -> Iterator[VariantSpec]:
    """Weak scaling over 1, 2, 4 … and all ranks, of those that divide them; the reference; strong scaling."""
    each = max(1, global_batch // ranks)
    sizes = [n for n in range(1, ranks + 1) if ranks % n == 0 and (n == ranks or n & (n - 1) == 0)]
    for n in sizes:
        yield VariantSpec(name=named(n), ranks=n, changes=_batch(each * n))
    yield VariantSpec(name=f"{ranks} jobs of 1 rank", ranks=1, at_once=True, changes=_batch(each))
    for n in sizes[:-1]:
        yield VariantSpec(name=f"{named(n)}, whole batch", ranks=n, changes=_batch(each * ranks))


def named(ranks: int) -> str:
    """Of a case of weak scaling."""
    return "1 rank" if ranks == 1 else f"{ranks} ranks"


def _batch(sequences: int) -> dict[str, dict[str, int]]:
    return {"train": {"global_batch": sequences}}
