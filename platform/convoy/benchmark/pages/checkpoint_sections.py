"""Parts of a benchmark's page on saves and restores: what was measured, and what is predicted of larger states."""

from convoy.benchmark.analysis.checkpoints import CheckpointFigures, Limit, Prediction
from convoy.benchmark.analysis.model import BenchReport
from convoy.benchmark.results.samples import Sample
from convoy.display import formatting
from convoy.display.page import Block, Heading, Table, Text
from convoy.stats.interval import Interval

_HOW = (
    "A save begins in each block of one training, and none in the blocks of the same training beside it; a block is "
    "meant to be longer than a save at its pace. The stall is what training waits for; what a save costs in all, with "
    "what its writing takes from the steps beside it, is over pairs of blocks. Beside steps a save is written at a "
    "pace that spares them; at rest, with nothing else going on, as fast as the storage takes it, all ranks at once, "
    "and restores are read past the host's cache. Commits are not read back here."
)


def checkpoints(report: BenchReport) -> tuple[Block, ...]:
    """Nothing where nothing was saved."""
    if not report.checkpoints:
        return ()
    blocks: list[Block] = [Heading("Saves and restores"), Text(_HOW, quiet=True), _measured(report)]
    for each in report.checkpoints:
        if each.predictions:
            blocks += [Text(_assumed(each)), _predictions(each)]
    return tuple(blocks)


def told(figure: Sample | None, form: formatting.Form = formatting.duration) -> str:
    """`85 ms (80 to 90 ms, n = 12)`: with the interval, or with the least and the most of few."""
    if figure is None:
        return ""
    if figure.n == 1:
        return f"{form(figure.median)}, n = 1"
    between = formatting.bounds(Interval(estimate=figure.median, low=figure.low, high=figure.high, n=figure.n), form)
    return f"{form(figure.median)} ({'' if figure.is_interval else 'from '}{between}, n = {figure.n})"


def _measured(report: BenchReport) -> Table:
    """A row for each figure: there are more of them than of trainings that save."""
    found = report.checkpoints
    rows = [
        ("State", [formatting.size(each.state_bytes) for each in found]),
        ("Writers", [str(each.writers) for each in found]),
        ("Stall of a save", [told(each.stall) for each in found]),
        ("Of the first", [_seconds(each.first_stall_seconds) for each in found]),
        ("Cost of a save", [_extra(each) for each in found]),
        ("Durable beside steps", [told(each.durable) for each in found]),
        ("At rest, filled up to", [formatting.size(each.rest_bytes) for each in found]),
        ("Save", [told(each.save) for each in found]),
        ("First save", [_seconds(each.first_save_seconds) for each in found]),
        ("Restore", [told(each.restore) for each in found]),
        ("Save rate of a writer", [told(each.save_rate, _rate) for each in found]),
        ("Restore rate of a rank", [told(each.restore_rate, _rate) for each in found]),
    ]
    return Table(("", *(each.model for each in found)), tuple((what, *cells) for what, cells in rows if any(cells)))


def _assumed(each: CheckpointFigures) -> str:
    writers = each.predictions[0].writers
    bought = each.storage_bytes_per_second
    inputs = [
        f"the rates at rest, of {formatting.size(each.rest_bytes / each.writers)} per writer, for {writers} writers",
        "no limit of the storage (predict.storage_gb_per_second)" if bought is None else f"storage of {_rate(bought)}",
    ]
    if each.network_bytes_per_second is not None:
        inputs.append(f"machines whose network carries {_rate(each.network_bytes_per_second)}, as the catalog has it")
    return (
        f"Predicted, not measured, from {', '.join(inputs)}. The slowest of them decides. What a save takes whatever "
        "its size is in the measured rates: of a small state they are lower than of a large one."
    )


def _predictions(each: CheckpointFigures) -> Table:
    rows = [
        (
            formatting.size(p.state_bytes),
            p.what,
            _predicted(p),
            f"{_LIMITS[p.limit]}, {_rate(p.bytes_per_second)}",
        )
        for p in each.predictions
    ]
    return Table((f"State, {each.model}'s rates", "What", "Predicted", "Limited by"), tuple(rows))


_LIMITS: dict[Limit, str] = {
    "the writers": "what was measured of a writer",
    "the storage that was bought": "the storage that was bought",
    "the network of the machines": "the network of the machines",
}


def _predicted(p: Prediction) -> str:
    if p.low == p.high:
        return formatting.duration(p.seconds)
    return f"{formatting.duration(p.seconds)} ({formatting.duration(p.low)} to {formatting.duration(p.high)})"


def _extra(each: CheckpointFigures) -> str:
    """With the sign that noise may give it."""
    if each.extra is None:
        return ""
    figure = each.extra
    if figure.low <= 0 <= figure.high:
        return f"none seen: {_signed(figure.estimate)} ({_signed(figure.low)} to {_signed(figure.high)})"
    return f"{_signed(figure.estimate)} ({_signed(figure.low)} to {_signed(figure.high)})"


def _signed(seconds: float) -> str:
    return formatting.duration(seconds) if seconds >= 0 else f"-{formatting.duration(-seconds)}"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else formatting.duration(seconds)


def _rate(bytes_per_second: float) -> str:
    return f"{formatting.size(bytes_per_second)}/s"
