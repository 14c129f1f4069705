"""The checkpoint suite: what a save costs training, and how fast the storage writes and reads a state.

Two trainings of the same model take turns; one of them begins a save in each of its blocks
(`benchmark/variants/convoy_saving.py`). The stores of `stores` are a gang of their own (`benchmark/measure/stores.py`).
"""

from collections.abc import Iterator, Sequence
from pathlib import PurePath

from convoy.benchmark.analysis import checkpoints, stores
from convoy.benchmark.analysis.checkpoints import CheckpointFigures, Prediction
from convoy.benchmark.analysis.report import BenchReport
from convoy.benchmark.groups import Group, Ranks, Suite, VariantSpec
from convoy.benchmark.pages.cases import sample_text
from convoy.benchmark.pages.stores import stores_section
from convoy.benchmark.results.case import LOCAL
from convoy.benchmark.results.files import file_name
from convoy.benchmark.results.values import PREDICTED_WRITERS, STORAGE_BYTES_PER_SECOND, SampleMedian
from convoy.checkpoint.writer.parts import PACED_SECONDS
from convoy.config.benchmark import BenchConfig, MeasureConfig, PredictConfig
from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig
from convoy.config.run import RunConfig
from convoy.display import formatting
from convoy.display.page import Block, Column, Heading, Table, Text, columns, transposed
from convoy.model.counts import SAVED_BYTES, parameter_count
from convoy.stats.interval import Interval
from convoy.storage.uri import FOLDER, STORES, store_kind

WITHOUT, WITH = "without saves", "a save in each block"

UNEVEN = 1.1
"""Upper bound on the largest rank's part of a save over the mean part."""

STORE_DEADLINE_SECONDS = 300.0
"""Time limit of a save where stores are compared."""

AROUND_SECONDS = 0.5
"""Allowed for the copy before the bytes of a save are written, and for the commit after them."""


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One group for each model, and another one of its stores if there are any; all ranks save. Raises ConfigError."""
    check_stores(config.stores)
    for model, run in runs.items():
        saving = VariantSpec(name=WITH, kind="saving", values=prediction_inputs(config.predict, ranks.all))
        measure = with_room_for_a_save(config.measure, run, ranks.all)
        yield SUITE.make_group(model, run, measure, (VariantSpec(name=WITHOUT), saving), predict=config.predict)
        if config.stores:
            fields = {"name": f"{SUITE.name}-{model}-stores", "baseline": None, "whole": True, "stores": True}
            cases = tuple(store_variant(store.rstrip("/"), run) for store in config.stores)
            yield SUITE.make_group(model, run, config.measure, cases, predict=config.predict, **fields)


def store_variant(store: str, run: RunConfig) -> VariantSpec:
    """The case of a store. A save that takes long fails before its gang counts as hung."""
    root = {} if store == LOCAL else {"root": store}
    deadline = min(run.checkpoint.deadline_seconds, STORE_DEADLINE_SECONDS)
    return VariantSpec(name=store, kind="saving", changes={**root, "checkpoint": {"deadline_seconds": deadline}})


def check_stores(names: Sequence[str]) -> None:
    """Raises ConfigError for what is no store, and for two that would have one file of results."""
    files: dict[str, str] = {}
    for i, name in enumerate(names):
        key = f"stores.{i} = {name}"
        if name == LOCAL:
            continue
        try:
            kind = store_kind(name)
        except ConfigError:
            kind = None
        if kind is None or (kind is FOLDER and not PurePath(name.removeprefix(FOLDER.scheme)).is_absolute()):
            nouns = ", ".join(each.noun for each in STORES if each is not FOLDER)
            raise ConfigError(f"{key}: must be {LOCAL}, the absolute path of a folder, {nouns}")
        other = files.setdefault(file_name(name.rstrip("/")), name)
        if other != name:
            raise ConfigError(f"{key}: its results would be in the same file as those of {other}; name one at a time")


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
    """Measured saves and restores, predictions for larger states, and the stores that were compared."""
    if not report.checkpoints:
        return stores_section(report.stores)
    blocks: list[Block] = [Heading("Saves and restores"), Text(_HOW, quiet=True), _measured_table(report.checkpoints)]
    for figures in report.checkpoints:
        if figures.predictions:
            blocks += [Text(_assumptions(figures)), _predictions(figures)]
    return (*blocks, *stores_section(report.stores))


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
    figures=lambda cases, _: {
        "checkpoints": checkpoints.checkpoint_figures(cases),
        "stores": stores.store_figures(cases),
    },
    sections=sections,
)
