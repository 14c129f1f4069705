"""What is known of a benchmark: the plain data that its page and its JSON show.

Durations are in seconds, sizes in bytes, rates in tokens per second of the whole gang. Intervals hold the true value in
95 of 100 such measurements.
"""

from datetime import date, datetime
from typing import Literal

from convoy.report.bench_campaign import CampaignFigures
from convoy.report.bench_checkpoints import CheckpointFigures
from convoy.report.bench_recovery import DrillFigures
from convoy.report.train_report import Fact
from convoy.results.case import Hardware, Provenance, Status
from convoy.results.values import INDEPENDENT
from convoy.stats.change import Change
from convoy.stats.interval import Interval

FORMAT = 1
"""Raised when a key changes its meaning or goes away; new keys may come without it."""

Verdict = Literal["more", "less", "no difference"]
Losses = Literal["agree", "differ", "not told"]
ScalingKind = Literal["weak", "strong", "independent"]


def verdict(ratio: Interval) -> Verdict:
    """What an interval of a ratio tells: nothing, where it holds 1."""
    if ratio.low <= 1 <= ratio.high:
        return "no difference"
    return "more" if ratio.estimate > 1 else "less"


class CaseFigures(Fact):
    """A case by itself, and beside the one that it is compared with."""

    name: str
    baseline: str | None
    """None: others are compared with it."""
    status: Status
    reason: str
    tokens_per_second: Interval | None
    step_seconds: Interval | None
    blocks: int
    speedup: Interval | None = None
    cpu_ratio: Interval | None = None
    """CPU time for a token over the baseline's."""
    not_compared: str = ""
    """Why there is no speedup, where there should be one."""
    mfu: float | None
    matmul_share: float | None
    memory_peak_bytes: int | None
    memory_ratio: float | None = None
    """Over the baseline's."""
    warm_up_steps: int
    steady: bool
    losses: Losses | None = None
    """None: with nothing to compare them with."""
    loss_difference: float | None = None
    """Largest one, relative to the baseline's loss."""
    parts: dict[str, float]
    """Median over blocks of each part of a step."""
    values: dict[str, float]
    not_measured: dict[str, str]

    @property
    def rate(self) -> float:
        """Tokens per second; 0 where that was not measured."""
        return self.tokens_per_second.estimate if self.tokens_per_second else 0.0


class GroupFigures(Fact):
    """Cases that took turns in one gang: the baseline first, then from the fastest to the slowest."""

    suite: str
    name: str
    model: str
    parameters: int
    tokens_per_step: tuple[int, ...]
    """Distinct ones of its cases."""
    hardware: Hardware
    """Of the case of the most ranks."""
    region: str | None
    """Of its prices."""
    cases: tuple[CaseFigures, ...]


class ScalingPoint(Fact):
    """A case of the scaling suite beside one rank."""

    case: str
    model: str
    kind: ScalingKind
    ranks: int
    tokens_per_second: Interval
    efficiency: Interval | None
    """Rate over as many times that of one rank; None for that rank itself, and where `why` tells."""
    paired: bool
    """One rank was measured in turns with it."""
    of_independent: Interval | None
    """Rate over that of as many independent jobs."""
    communication_share: float | None
    """Of the step."""
    communication_ratio: float | None
    """To the rest of the step."""
    network_bytes: float | None
    link_share: float | None
    why: str = ""


class Offer(Fact):
    """What a million tokens cost on machines that are bought so; the interval is that of the rate."""

    market: str
    usd_per_hour: float
    """Of all machines."""
    low_usd_per_hour: float
    high_usd_per_hour: float
    """In the cheapest and the dearest zone."""
    price_date: date
    source: str
    usd_per_million_tokens: Interval


class CostFigures(Fact):
    """Of the fastest case of a model on some machines."""

    case: str
    model: str
    machines: str
    region: str | None
    tokens_per_second: Interval
    offers: tuple[Offer, ...]
    why: str = ""
    """Why there is no cost."""


class Run(Fact):
    """One of a history."""

    measured: datetime
    tokens_per_second: float


class HistoryFigures(Fact):
    """A case and the earlier runs of its fingerprint, oldest first."""

    case: str
    runs: tuple[Run, ...]
    changes: tuple[Change, ...]
    detectable: float | None
    """The smallest relative change that the last runs would have shown; None: too few runs to tell of any."""


class BenchReport(Fact):
    """Of all cases of a folder."""

    format: int = FORMAT
    groups: tuple[GroupFigures, ...]
    scaling: tuple[ScalingPoint, ...]
    costs: tuple[CostFigures, ...]
    checkpoints: tuple[CheckpointFigures, ...] = ()
    recovery: tuple[DrillFigures, ...] = ()
    campaign: CampaignFigures | None = None
    """None: no recovery suite was run."""
    history: tuple[HistoryFigures, ...] | None
    """None: nobody asked for it."""
    provenance: tuple[Provenance, ...]
    """Distinct ones, but for their command and when each case began: the first of each."""
    commands: tuple[str, ...]
    """That measured the cases."""


def trains_one_model(case: CaseFigures) -> bool:
    """Whether it was measured, and trains one model, and the one that it should."""
    return case.rate > 0 and case.losses != "differ" and not case.values.get(INDEPENDENT)
