"""The checkpoint suite: what a save costs the training beside it, and how fast the storage takes and gives its state.

Two trainings of the same model take turns, and one of them begins a save in each of its blocks (`bench/saving.py`).
"""

from collections.abc import Iterator

from convoy.bench.groups import Group, Ranks, VariantSpec
from convoy.config.bench import BenchConfig
from convoy.config.bench_recovery import PredictConfig
from convoy.config.run import RunConfig
from convoy.results.values import PREDICTED_WRITERS, STORAGE_BYTES_PER_SECOND

WITHOUT, WITH = "without saves", "a save in each block"


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One for each model. runs: by the model's name. ranks: of the gang, all of which save."""
    for model, run in runs.items():
        yield Group(
            name=f"checkpoint-{model}",
            suite="checkpoint",
            baseline=WITHOUT,
            variants=(
                VariantSpec(name=WITHOUT),
                VariantSpec(name=WITH, kind="saving", values=predicted(config.predict, ranks.all)),
            ),
            run=run,
            measure=config.measure,
            predict=config.predict,
        )


def predicted(asked: PredictConfig, writers: int) -> dict[str, float]:
    """The job that predictions are for, as values of a case. writers: of the gang that is measured."""
    found = {PREDICTED_WRITERS: float(asked.writers or writers)}
    if asked.storage_gb_per_second is not None:
        found[STORAGE_BYTES_PER_SECOND] = 1e9 * asked.storage_gb_per_second
    return found
