"""The checkpoint suite: what a save costs the training beside it, and how fast the storage takes and gives its state.

Two trainings of the same model take turns, and one of them begins a save in each of its blocks
(`benchmark/variants/convoy_saving.py`).
"""

from collections.abc import Iterator

from convoy.benchmark.analysis import checkpoints
from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.pages import checkpoint_sections
from convoy.benchmark.results.values import PREDICTED_WRITERS, STORAGE_BYTES_PER_SECOND
from convoy.checkpoint.writer.write_rate import PACED_SECONDS
from convoy.config.benchmark import BenchConfig, MeasureConfig, PredictConfig
from convoy.config.model import CustomModelConfig
from convoy.config.run import RunConfig
from convoy.model.counts import SAVED_BYTES, parameter_count

WITHOUT, WITH = "without saves", "a save in each block"

UNEVEN = 1.1
"""The largest part of a save over the mean one, at most."""

AROUND_SECONDS = 0.5
"""Of a save, for the copy before its bytes are written, and the commit after."""


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One for each model. runs: by the model's name. ranks: of the gang, all of which save."""
    for model, run in runs.items():
        yield Group(
            name=f"checkpoint-{model}",
            suite=SUITE.name,
            baseline=WITHOUT,
            variants=(
                VariantSpec(name=WITHOUT),
                VariantSpec(name=WITH, kind="saving", values=predicted(config.predict, ranks.all)),
            ),
            run=run,
            measure=with_room_for_a_save(config.measure, run, ranks.all),
            predict=config.predict,
        )


def with_room_for_a_save(asked: MeasureConfig, run: RunConfig, writers: int) -> MeasureConfig:
    """Blocks longer than a save at its pace takes, so that it ends in the block that began it, unless the storage is
    slower. What a custom model saves is not known before it is built."""
    pace = run.checkpoint.write_mb_per_second
    if pace is None or isinstance(run.model, CustomModelConfig):
        return asked
    part = SAVED_BYTES * parameter_count(run.model) / writers
    save = UNEVEN * min(PACED_SECONDS, part / (1e6 * pace)) + AROUND_SECONDS
    return asked.model_copy(update={"block_seconds": max(asked.block_seconds, save)})


def predicted(asked: PredictConfig, writers: int) -> dict[str, float]:
    """The job that predictions are for, as values of a case. writers: of the gang that is measured."""
    found = {PREDICTED_WRITERS: float(asked.writers or writers)}
    if asked.storage_gb_per_second is not None:
        found[STORAGE_BYTES_PER_SECOND] = 1e9 * asked.storage_gb_per_second
    return found


SUITE = Suite(
    name=checkpoints.SUITE,
    title="Checkpoints",
    meaning="what a save costs the training, and how fast the storage takes and gives its state",
    groups=groups,
    figures=lambda cases, _: {"checkpoints": checkpoints.checkpoints(cases)},
    sections=checkpoint_sections.checkpoints,
)
