"""The checkpoint suite: what a save costs training, and how fast the storage writes and reads a state.

Two trainings of the same model take turns; one of them begins a save in each of its blocks
(`benchmark/variants/convoy_saving.py`).
"""

from collections.abc import Iterator

from convoy.benchmark.analysis import checkpoints
from convoy.benchmark.analysis.checkpoints import CheckpointFigures, Prediction
from convoy.benchmark.analysis.report import BenchReport
from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.pages.cases import sample_text
from convoy.benchmark.results.values import PREDICTED_WRITERS, STORAGE_BYTES_PER_SECOND, SampleMedian
from convoy.checkpoint.writer.parts import PACED_SECONDS
from convoy.config.benchmark import BenchConfig, MeasureConfig, PredictConfig
from convoy.config.model import CustomModelConfig
from convoy.config.run import RunConfig
from convoy.display import formatting
from convoy.display.page import Block, Column, Heading, Table, Text, columns, transposed
from convoy.model.counts import SAVED_BYTES, parameter_count
from convoy.stats.interval import Interval

WITHOUT, WITH = "without saves", "a save in each block"

UNEVEN = 1.1
"""Upper bound on the largest rank's part of a save over the mean part."""

AROUND_SECONDS = 0.5
"""Allowed for the copy before the bytes of a save are written, and for the commit after them."""


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One group for each model; all ranks save."""
    for model, run in runs.items():
        saving = VariantSpec(name=WITH, kind="saving", values=prediction_inputs(config.predict, ranks.all))
        measure = with_room_for_a_save(config.measure, run, ranks.all)
        yield SUITE.make_group(model, run, measure, (VariantSpec(name=WITHOUT), saving), predict=config.predict)


def with_room_for_a_save(measure: MeasureConfig, run: RunConfig, writers: int) -> MeasureConfig:
    """Make blocks longer than a save at its pace takes, so that it ends in the block that began it, unless the storage
    is slower. The size of a custom model's state is not known before the model is built."""
    pace = run.checkpoint.write_mb_per_second
    if pace is None or isinstance(run.model, CustomModelConfig):
        return measure
    part = SAVED_BYTES * parameter_count(run.model) / writers
    save = UNEVEN * min(PACED_SECONDS, part / (1e6 * pace)) + AROUND_SECONDS
    return measure.model_copy(update={"block_seconds": max(measure.block_seconds, save)})


def prediction_inputs(predict: PredictConfig, writers: int) -> dict[str, float]:
    """Values of a case that describe the job of the predictions. writers: ranks of the gang that is measured."""
    values = {PREDICTED_WRITERS: float(predict.writers or writers)}
    if predict.storage_gb_per_second is not None:
        values[STORAGE_BYTES_PER_SECOND] = 1e9 * predict.storage_gb_per_second
    return values


_HOW = (
    "A save begins in each block of one training; the same training without saves takes turns with it. A block is "
    "meant to be longer than a save at its pace. The stall is how long training waits; the cost of a save also "
    "includes what its writing takes from the steps, and is measured over pairs of blocks. During training a save is "
    "written at a pace that spares the steps; at rest, with nothing else running, as fast as the storage allows, all "
    "ranks at once, and restores bypass the host's cache. Commits are not read back here."
)


def sections(report: BenchReport) -> tuple[Block, ...]:
    """Measured saves and restores, and predictions for larger states."""
    if not report.checkpoints:
        return ()
    blocks: list[Block] = [Heading("Saves and restores"), Text(_HOW, quiet=True), _measured_table(report.checkpoints)]
    for figures in report.checkpoints:
        if figures.predictions:
            blocks += [Text(_assumptions(figures)), _predictions(figures)]
    return tuple(blocks)


def _measured_table(trainings: tuple[CheckpointFigures, ...]) -> Table:
    """A row for each figure: there are more of them than of trainings that save."""
    by_training = columns(
        trainings,
        Column("", lambda f: f.model),
        Column("State", lambda f: f.state_bytes, formatting.size),
        Column("Writers", lambda f: f.writers),
        Column("Stall of a save", lambda f: f.stall, sample_text),
        Column("Stall of the first save", lambda f: f.first_stall_seconds, formatting.duration),
        Column("Cost of a save", lambda f: f.extra, _overhead_text),
        Column("Durable during training", lambda f: f.durable, sample_text),
        Column("At rest, padded to", lambda f: f.rest_bytes, formatting.size),
        Column("Save", lambda f: f.save, sample_text),
        Column("First save", lambda f: f.first_save_seconds, formatting.duration),
        Column("Restore", lambda f: f.restore, sample_text),
        Column("Save rate of a writer", lambda f: f.save_rate, _rate),
        Column("Restore rate of a rank", lambda f: f.restore_rate, _rate),
        drop_empty=True,
    )
    return transposed(by_training)


def _overhead_text(seconds: Interval) -> str:
    text = formatting.duration(seconds.estimate)
    text += f" ({formatting.duration(seconds.low)} to {formatting.duration(seconds.high)})"
    return f"none measured: {text}" if seconds.low <= 0 <= seconds.high else text


def _rate(sample: SampleMedian) -> str:
    return sample_text(sample, formatting.bandwidth)


def _assumptions(figures: CheckpointFigures) -> str:
    writers = figures.predictions[0].writers
    storage, network = figures.storage_bytes_per_second, figures.network_bytes_per_second
    part = formatting.size(figures.rest_bytes / figures.writers)
    inputs = [
        f"the rates at rest, of {part} per writer, for {writers} writers",
        "no limit of the storage (predict.storage_gb_per_second)"
        if storage is None
        else f"storage of {formatting.bandwidth(storage)}",
    ]
    if network is not None:
        inputs.append(f"machines whose network carries {formatting.bandwidth(network)}, as the catalog has it")
    return (
        f"Predicted, not measured, from {', '.join(inputs)}. The slowest of these is the limit. The measured rates "
        "include the fixed cost of a save, so those of a small state are lower than those of a large one."
    )


def _predictions(figures: CheckpointFigures) -> Table:
    return columns(
        figures.predictions,
        Column(f"State, {figures.model}'s rates", lambda p: p.state_bytes, formatting.size),
        Column("What", lambda p: p.what),
        Column("Predicted", _seconds),
        Column("Limited by", _limit),
    )


def _limit(prediction: Prediction) -> str:
    limit = "the measured rate of a writer" if prediction.limit == "the writers" else prediction.limit
    return f"{limit}, {formatting.bandwidth(prediction.bytes_per_second)}"


def _seconds(prediction: Prediction) -> str:
    seconds, low, high = (formatting.duration(each) for each in (prediction.seconds, prediction.low, prediction.high))
    return seconds if prediction.low == prediction.high else f"{seconds} ({low} to {high})"


SUITE = Suite(
    name=checkpoints.SUITE,
    title="Checkpoints",
    meaning="what a save costs training, and how fast the storage writes and reads a state",
    groups=groups,
    figures=lambda cases, _: {"checkpoints": checkpoints.checkpoint_figures(cases)},
    sections=sections,
)
