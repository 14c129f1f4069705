"""Section of a benchmark's page on what others measured of such models on such GPUs."""

from convoy.benchmark.analysis.report import BenchReport, PublishedFigures, PublishedRun
from convoy.display import formatting
from convoy.display.page import Block, Column, Heading, Table, Text, columns

_HOW = (
    "Measured and published by others, not by Convoy: they show what such GPUs have reached, and prove nothing about "
    "this benchmark. Software, batches and networks differ; compare the MFU, which is as published. The runs are those "
    "of models of about the same size, with the nearest sequence length, in the table that the planner is validated "
    "against, each with the day on which it was published."
)


def published_section(report: BenchReport) -> tuple[Block, ...]:
    """A table for each model and kind of machine; nothing where nobody published a run of such a model on such GPUs."""
    if not report.published:
        return ()
    blocks: list[Block] = [Heading("Published by others"), Text(_HOW, quiet=True)]
    for figures in report.published:
        blocks += [Text(_compared_with(figures), quiet=True), _table(figures)]
    sources = dict.fromkeys((run.source, run.url) for figures in report.published for run in figures.runs)
    return (*blocks, *(Text(f"Source: {source}: {url}", quiet=True) for source, url in sources))


def _compared_with(figures: PublishedFigures) -> str:
    """What is comparable here."""
    model = f"{figures.model}, {formatting.count(figures.parameters)} parameters, on {figures.machines}"
    if figures.tokens_per_second_of_rank is None:
        return f"{model}: not measured here."
    rate = formatting.rate(figures.tokens_per_second_of_rank)
    mfu = "" if figures.mfu is None else f", MFU {formatting.percent(figures.mfu)}"
    return f"{model}: {figures.case} reached {rate} on each GPU here{mfu}."


def _table(figures: PublishedFigures) -> Table:
    return columns(
        figures.runs,
        Column("Published", lambda run: str(run.published)),
        Column("Model", lambda run: f"{run.model}, {formatting.count(run.parameters)} parameters"),
        Column("GPUs", _gpus),
        Column("Sequence length", lambda run: f"{run.sequence_length:,}"),
        Column("Strategy", lambda run: run.sharding),
        Column("Recomputation", lambda run: run.recomputation),
        Column("Tokens per second of a GPU", lambda run: f"{run.tokens_per_second_of_gpu:,.0f}"),
        Column("MFU", lambda run: run.mfu, formatting.percent, missing="not published"),
    )


def _gpus(run: PublishedRun) -> str:
    return f"{run.gpus} × {run.gpu} of {run.gpu_memory_bytes / 2**30:.0f} GiB"
