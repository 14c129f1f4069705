"""The page of several models: one line for each model of each benchmark."""

from convoy.benchmark.analysis.summary import ModelSummary, Summary
from convoy.benchmark.pages.headline import market_text
from convoy.display import formatting
from convoy.display.page import Block, Callout, Column, Heading, Page, Text, columns
from convoy.stats.interval import Interval

_HOW = (
    "Speed-up: tokens per second over those of the baseline, in turns in one gang. Memory: the peak of a rank's "
    "tensors over the memory of its GPU. Scaling: weak efficiency on the most ranks. Computed: model FLOP/s of all "
    "ranks, without recomputation. Cost: machines for as long as a million tokens take, without interruptions. Each "
    "benchmark is a folder, whose report has the rest."
)


def summary_page(summary: Summary) -> Page:
    """One table, and why a model is not in it."""
    title = Heading("Models", level=1)
    if not summary.models:
        return Page("Models", (title, Callout("Nothing was measured", "There are no cases that train.", "warning")))
    measured = [line for line in summary.models if not line.why]
    blocks: list[Block] = [title, Text(_HOW, quiet=True)]
    if measured:
        blocks.append(
            columns(
                measured,
                Column("Benchmark", lambda line: line.folder),
                Column("Model", lambda line: line.model),
                Column("Machines", lambda line: f"{line.machines}, {formatting.plural(line.ranks, 'rank')}"),
                Column("Tokens per second", lambda line: line.tokens_per_second, _rate),
                Column("Speed-up", lambda line: line.speedup, formatting.ratio, missing="not measured"),
                Column("GPU memory", lambda line: line.memory_share, formatting.percent, missing="not known"),
                Column("Scaling", _scaling, missing="not measured"),
                Column("Computed", lambda line: line.flops_per_second, formatting.flops),
                Column("USD per million tokens", _cost, missing="not known"),
            )
        )
        blocks += [Text(text, quiet=True) for text in dict.fromkeys(map(_source, measured)) if text]
    blocks += [Text(f"{line.model} ({line.folder}): {line.why}.") for line in summary.models if line.why]
    return Page("Models", tuple(blocks))


def _rate(rate: Interval) -> str:
    return formatting.estimate(rate, formatting.rate)


def _scaling(line: ModelSummary) -> str | None:
    if line.scaling is None:
        return None
    return f"{formatting.percent(line.scaling.estimate)} on {formatting.plural(line.scaled_to or 0, 'rank')}"


def _cost(line: ModelSummary) -> str | None:
    if line.offer is None:
        return None
    return f"{formatting.significant(line.offer.usd_per_million_tokens.estimate)}, {market_text(line.offer)}"


def _source(line: ModelSummary) -> str:
    if line.offer is None:
        return ""
    return f"Prices of {line.machines}, {market_text(line.offer)}: {line.offer.price_date}, {line.offer.source}."
