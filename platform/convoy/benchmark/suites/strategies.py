"""The strategies suite: the same model, data and loss under each way to spread them over the ranks."""

from collections.abc import Iterator

from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.largest_model import with_largest_models
from convoy.benchmark.suites import model_parallel, peers
from convoy.config.benchmark import BenchConfig
from convoy.config.run import RunConfig

REFERENCE = "ddp"


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """Two for each model, the second one of what cuts the model itself. runs: by the model's name."""
    for model, run in runs.items():
        group = Group(
            name=f"strategies-{model}",
            suite=SUITE.name,
            baseline=REFERENCE,
            variants=(
                *variants_of(ranks.all, by_linear=run.train.activation_checkpointing != "selective"),
                *peers.variants_of(config.peers),
            ),
            run=run,
            measure=config.measure,
        )
        yield with_largest_models(group, ranks)
        cut = model_parallel.group(model, run, ranks, config.measure)
        if cut is not None:
            yield with_largest_models(cut, ranks)


def variants_of(ranks: int, *, by_linear: bool = True) -> Iterator[VariantSpec]:
    """ddp, then what shards: wholly, without the second gather, by linear layers, and within half of the ranks."""
    yield VariantSpec(name=REFERENCE, changes=_parallel(strategy="ddp"))
    yield VariantSpec(name="fsdp", changes=_parallel(strategy="fsdp"))
    yield VariantSpec(name="fsdp, gathered once", changes=_parallel(strategy="fsdp", reshard_after_forward=False))
    if by_linear:
        yield VariantSpec(name="fsdp by linear", changes=_parallel(strategy="fsdp", wrap="linear"))
    if ranks > 2 and ranks % 2 == 0:
        half = ranks // 2
        yield VariantSpec(name=f"hsdp, {half} ranks", changes=_parallel(strategy="hsdp", shard_size=half))


def _parallel(
    *, strategy: str, reshard_after_forward: bool = True, wrap: str = "block", shard_size: int | None = None
) -> dict[str, dict[str, object]]:
    keys = {"strategy": strategy, "reshard_after_forward": reshard_after_forward, "wrap": wrap}
    return {"parallel": {**keys, "shard_size": shard_size, "tensor": 1, "pipeline": 1}}


SUITE = Suite(
    name="strategies",
    title="Strategies side by side",
    meaning="the same model, data and loss under each way to spread them over the ranks",
    groups=groups,
    fewest_ranks=2,  # on a single rank all are alike
    measures=frozenset({"memory", "state"}),
)
