"""What is known of a benchmark: the plain data that its page and its JSON show.

Durations are in seconds, sizes in bytes, rates in tokens per second of the whole gang. Intervals hold the true value in
95 of 100 such measurements.
"""

from datetime import date, datetime
from typing import Literal

from pydantic import ConfigDict, Field

from convoy.benchmark.analysis.campaign import CampaignFigures
from convoy.benchmark.analysis.checkpoints import CheckpointFigures
from convoy.benchmark.analysis.network import NetworkReport
from convoy.benchmark.analysis.predictions import PredictedFigures
from convoy.benchmark.analysis.recovery import DrillFigures
from convoy.benchmark.analysis.stores import StoreFigures
from convoy.benchmark.results.case import FrozenResult, Hardware, HostUse, Provenance, Status
from convoy.benchmark.results.collectives import CollectiveTiming
from convoy.benchmark.results.values import INDEPENDENT
from convoy.catalog.prices import Price
from convoy.report.train_report import NetworkUse
from convoy.stats.changepoint import ChangePoint
from convoy.stats.interval import Interval

FORMAT = 2
"""Raised when a key changes its meaning or goes away; new keys may come without it."""

TOTAL_STEPS = 1000
"""Steps of the training whose total time environments are compared by."""

Verdict = Literal["more", "less", "no difference"]
Losses = Literal["agree", "differ", "not compared"]
ScalingKind = Literal["weak", "strong", "independent"]
SyncLevel = Literal["low", "middle", "high"]


def verdict(ratio: Interval) -> Verdict:
    """The verdict of a ratio's interval: no difference if it contains 1."""
    if ratio.low <= 1 <= ratio.high:
        return "no difference"
    return "more" if ratio.estimate > 1 else "less"


class CaseFigures(FrozenResult):
    """A case by itself, and versus the one that it is compared with."""

    name: str
    baseline: str | None
    """None: it is the one that others are compared with."""
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
    flops_per_second: float | None = None
    """Model FLOP/s of all its ranks together, forward and backward without recomputation."""
    memory_peak_bytes: int | None
    memory_ratio: float | None = None
    """Over the baseline's."""
    warm_up_steps: int
    steady: bool
    losses: Losses | None = None
    """None: there is nothing to compare them with."""
    loss_difference: float | None = None
    """Largest one, relative to the baseline's loss."""
    parts: dict[str, float]
    """Median over blocks of each part of a step."""
    values: dict[str, float]
    not_measured: dict[str, str]
    hosts: tuple[HostUse, ...] = ()
    """What each host used; empty: not measured."""

    @property
    def rate(self) -> float:
        """Tokens per second; 0 where that was not measured."""
        return self.tokens_per_second.estimate if self.tokens_per_second else 0.0


class GroupFigures(FrozenResult):
    """Cases that took turns in one gang: the baseline first, then from the fastest to the slowest."""

    suite: str
    name: str
    model: str
    parameters: int
    unit: str = "tokens"
    """What is counted as tokens: those, or the samples of another kind of model, such as images."""
    tokens_per_step: tuple[int, ...]
    """Distinct ones of its cases."""
    hardware: Hardware
    """The hardware of the case with the most ranks."""
    lab: str = ""
    """The lab in which its cases were measured; empty: real machines."""
    matmul_tflops: dict[str, float] = {}
    """Rate of a plain matmul on a rank, by type of number."""
    carried_by: tuple[NetworkUse, ...] = ()
    """Distinct ones of its cases."""
    region: str | None
    """Region of its prices."""
    market: str | None = None
    """Configured market of its machines; None: the results do not name one."""
    prices: tuple[Price, ...] = Field((), exclude=True)
    """Configured prices of one machine, which are part of its offers."""
    cases: tuple[CaseFigures, ...]


class ScalingPoint(FrozenResult):
    """A case of the scaling suite versus one rank, or as few as have room for the model."""

    case: str
    model: str
    kind: ScalingKind
    ranks: int
    reference: bool
    """Whether it is the one that others are compared with."""
    tokens_per_second: Interval
    efficiency: Interval | None
    """Rate per rank over that of the reference; None for that itself, and where `why` says so."""
    relative_to: int | None = None
    """Ranks of the reference; None where there is no efficiency."""
    overhead: Interval | None = None
    """Additional time of all ranks together for the same work over the reference's: 1 / efficiency - 1."""
    paired: bool
    """The reference was measured in turns with it."""
    of_independent: Interval | None
    """Rate over that of as many independent jobs."""
    communication_share: float | None
    """Exposed communication over the step."""
    communication_ratio: float | None
    """Exposed communication over the rest of the step."""
    added_share: Interval | None = None
    """Of a reference of several ranks: exposed communication over the step, without what as many independent jobs of
    the reference's size have of their own."""
    network_bytes: float | None
    link_share: float | None
    node_bytes: float | None = None
    """Sent in a step by a node's network adapters, the mean over the nodes at work; None: there is one, or it was not
    measured."""
    why: str = ""


class PredictedScalingPoint(FrozenResult):
    """Weak scaling on some nodes, predicted."""

    nodes: int
    ranks: int
    """All of the nodes; or as many of one node's as were measured."""
    tokens_per_second: float
    efficiency: float
    """Rate per rank over that of the fewest ranks with a prediction."""
    measured: Interval | None
    """Tokens per second of as many ranks; None: not measured."""
    error: float | None
    """Prediction over measurement, minus 1."""


class PredictedScaling(FrozenResult):
    """The curve of a model over nodes that the planner predicts."""

    model: str
    machine: str
    points: tuple[PredictedScalingPoint, ...] = ()
    lacking: tuple[str, ...] = ()
    """Nodes without a point, each with the reason."""
    why: str = ""
    """Why there is no curve."""


class SyncFigures(FrozenResult):
    """Synchronisation in a step, from as many trainings of one rank at once."""

    group: str
    model: str
    ranks: int
    share: Interval | None
    """Share of the step; below zero where none was measured. None: `why` says why."""
    levels: tuple[SyncLevel, ...] = ()
    """Levels that the interval reaches into, the lowest first."""
    parts: dict[str, float] = {}
    """Seconds of a step, which they make up; medians over blocks."""
    collectives: tuple[CollectiveTiming, ...] = ()
    why: str = ""


class FrameworkFigures(FrozenResult):
    """A training of all ranks of a gang together, in the frameworks suite."""

    group: str
    case: str
    step_seconds: Interval | None
    parts: dict[str, float]
    """Seconds of `forward`, `backward`, `sync` and `update`; medians over blocks. Of ours, sync is what the other parts
    take longer than in its training alone."""
    share: Interval | None
    """Share of a step that training together adds. None: `why` says why."""
    why: str = ""
    compile_seconds: float | None = None
    loss_difference: float | None = None
    """Largest one from the baseline's losses, relative to these; None: it is the baseline."""


class EnvironmentSeconds(FrozenResult):
    """Times of an environment, medians over its gangs. None: not measured in each of them."""

    sync: Interval | None = None
    """Of a step, in which a collective was in progress, whether computation hid it or not."""
    start_up: Interval | None = None
    """From the start of the ranks to the end of their first step, without preparing the data."""
    total: Interval | None = None
    """Of a training of `TOTAL_STEPS` steps: start-up, and the others as long as the median step of each gang."""


class CollectiveSpeedup(FrozenResult):
    """A collective by itself in an environment and in the one that it is compared with."""

    base: CollectiveTiming
    own: CollectiveTiming
    """Medians over gangs."""
    speedup: Interval
    """Time in the first environment over its own."""


class EnvironmentFigures(FrozenResult):
    """An environment versus the first one of its group, over pairs of gangs. Each speedup is a time of the first over
    the same of this one, so that more than 1 is faster."""

    group: str
    environment: str
    base: str
    speedup: Interval | None
    """Of throughput. None: `why` says why."""
    sync_speedup: Interval | None = None
    """Of a step's synchronisation. None: `not_known` says why."""
    total_speedup: Interval | None = None
    """Of the total time. None: `not_known` says why."""
    not_known: dict[str, str] = {}
    """Why there is no such speedup, by what it would be of."""
    seconds: EnvironmentSeconds = EnvironmentSeconds()
    base_seconds: EnvironmentSeconds = EnvironmentSeconds()
    collectives: tuple[CollectiveSpeedup, ...] = ()
    rdma_claimed: bool
    significant: bool | None = None
    """Whether the speedup's lower bound is what is claimed of RDMA; None: nothing was claimed, or measured."""
    varied: tuple[str, ...] = ()
    """Variables that were to differ."""
    why: str = ""


class TokenPrice(FrozenResult):
    """Price of a million tokens in one market; its interval is that of the rate."""

    market: str
    usd_per_hour: float
    """Price of all machines."""
    low_usd_per_hour: float
    high_usd_per_hour: float
    """In the cheapest and the dearest zone."""
    price_date: date
    source: str
    usd_per_million_tokens: Interval


class BaselineCost(FrozenResult):
    """The baseline of the same model on the same machines; an hour of these costs what the offers say."""

    case: str
    tokens_per_second: Interval


class CostFigures(FrozenResult):
    """The fastest case of a model on some machines."""

    case: str
    model: str
    machines: str
    region: str | None
    tokens_per_second: Interval
    offers: tuple[TokenPrice, ...]
    on_gpus: bool = False
    """Its devices are GPUs whose peak is known, such as models of a size are trained on."""
    market: str | None = None
    """Configured market of the machines; None: the results do not name one."""
    baseline: BaselineCost | None = None
    """None: none was measured there that computes what it should."""
    why: str = ""
    """Why there is no cost."""


class PublishedRun(FrozenResult):
    """A training that others measured and published."""

    model: str
    parameters: int
    gpu: str
    """Chip, such as `A100`."""
    gpu_memory_bytes: int
    gpus: int
    sequence_length: int
    sharding: str
    """`parallel.strategy` that corresponds to theirs."""
    recomputation: str
    """`train.activation_checkpointing` that corresponds to theirs."""
    tokens_per_second_of_gpu: float
    mfu: float | None
    """As published; None: it was not."""
    source: str
    published: date
    url: str


class PublishedFigures(FrozenResult):
    """Runs that others published of models of about the same size on the same GPUs as a model of this benchmark."""

    model: str
    parameters: int
    machines: str
    case: str = ""
    """The fastest valid case of the model there; empty: none was measured."""
    tokens_per_second_of_rank: float | None = None
    mfu: float | None = None
    """Of that case."""
    runs: tuple[PublishedRun, ...]


class HistoryRun(FrozenResult):
    """One of a history."""

    measured: datetime
    tokens_per_second: float | None = None
    """None: the case was measured by size."""
    bytes_per_second: float | None = None
    """None: the case has tokens."""

    @property
    def rate(self) -> float:
        """The one that it has."""
        return self.tokens_per_second if self.tokens_per_second is not None else self.bytes_per_second or 0.0


class HistoryFigures(FrozenResult):
    """A case and the earlier runs of its fingerprint, oldest first."""

    case: str
    size: int | None = None
    """Bytes, of a case that was measured by size, which has a history for each."""
    runs: tuple[HistoryRun, ...]
    changes: tuple[ChangePoint, ...]
    detectable: float | None
    """The smallest relative change that the last runs would have shown; None: too few runs to detect any."""


class BenchReport(FrozenResult):
    """Of all cases of a folder. Suites may add further fields (`Suite.figures`)."""

    model_config = ConfigDict(extra="allow")

    format: int = FORMAT
    groups: tuple[GroupFigures, ...]
    scaling: tuple[ScalingPoint, ...] = ()
    scaling_predicted: tuple[PredictedScaling, ...] = ()
    sync: tuple[SyncFigures, ...] = ()
    environments: tuple[EnvironmentFigures, ...] = ()
    frameworks: tuple[FrameworkFigures, ...] = ()
    network: NetworkReport | None = None
    """None: the network suite measured nothing."""
    costs: tuple[CostFigures, ...]
    checkpoints: tuple[CheckpointFigures, ...] = ()
    stores: tuple[StoreFigures, ...] = ()
    recovery: tuple[DrillFigures, ...] = ()
    campaign: CampaignFigures | None = None
    """None: no recovery suite was run."""
    predicted: PredictedFigures | None = None
    """None: nothing was predicted, as in results of earlier versions."""
    published: tuple[PublishedFigures, ...] = ()
    """Empty: nobody published a run of such a model on such GPUs, as far as the shipped table knows."""
    history: tuple[HistoryFigures, ...] | None
    """None: it was not requested."""
    provenance: tuple[Provenance, ...]
    """Distinct ones, but for their command and when each case began: the first of each."""
    commands: tuple[str, ...]

    @property
    def cases(self) -> list[tuple[GroupFigures, CaseFigures]]:
        """Of all groups, each with its group."""
        return [(group, case) for group in self.groups for case in group.cases]


def is_valid_training(case: CaseFigures) -> bool:
    """Whether it was measured, and trains one model, and the one that it should."""
    return case.rate > 0 and case.losses != "differ" and not case.values.get(INDEPENDENT)
