"""Parts of the training pages on what is not as it should be while the gang goes on."""

from convoy.display import formatting
from convoy.display.page import Block, Callout
from convoy.report.analysis.nodes_timeline import nodes_in_words
from convoy.report.train_report import TrainReport


def troubles(report: TrainReport) -> tuple[Block, ...]:
    """A callout for each; none for a job that does not run."""
    if report.outcome.state != "running":
        return ()
    return (*_storage(report), *_slow(report))


def _storage(report: TrainReport) -> tuple[Block, ...]:
    others = {tier.uri for tier in report.tiers} - {trouble.tier for trouble in report.storage_troubles}
    goes_on = "Training goes on; " + ("saves go to another tier." if others else "nothing can be saved meanwhile.")
    return tuple(
        Callout(f"Storage {t.tier}: {t.problem}", f"Seen on {nodes_in_words(t.nodes)}. {goes_on}", "warning")
        for t in report.storage_troubles
    )


def _slow(report: TrainReport) -> tuple[Block, ...]:
    return tuple(
        Callout(
            f"Node {slow.node} is slow",
            f"The others wait for it {formatting.percent(slow.share)} of their time. Nothing is lost; it is worth "
            "looking at its clocks, its memory and its neighbours.",
            "warning",
        )
        for slow in report.slow_nodes
    )
