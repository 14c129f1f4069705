"""The parts of a plan: machines, batch, memory, time of a step, checkpoints, and time and cost of the whole.

docs/reference/plan-formats.md#plan has every key. Bytes and seconds unless a name says otherwise.
"""

from datetime import date
from typing import Literal

from pydantic import BaseModel, ConfigDict

Part = Literal["memory", "host_memory", "step", "break_even", "saves", "budget"]


class Planned(BaseModel):
    """What was planned does not change. Keys of later versions are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Missing(Planned):
    """A part of a plan that there is not."""

    part: Part
    why: str


class PlannedMachines(Planned):
    """Where it runs."""

    nodes: int
    ranks_per_node: int
    gpu: str
    """Chip; `cpu`: there is none."""
    instance_type: str | None
    market: str
    region: str

    @property
    def ranks(self) -> int:
        return self.nodes * self.ranks_per_node


class PlannedBatch(Planned):
    """What a step is."""

    tokens_per_step: int
    passes: int
    """Of a rank in a step."""
    sequences_per_pass: int
    tokens_per_pass: int
    """Of one rank."""
    padded_sequences: int = 0
    """Rows of all passes of a step, on all ranks, that are filled up for want of a sequence: computed, and not counted
    as tokens."""


class PlannedMemory(Planned):
    """Of each GPU at the peak of a step, on a rank that takes most; of a rank's part of the host, without a GPU."""

    parts: dict[str, int]
    """Tensors, by what they are for; together `peak_bytes`."""
    peak_bytes: int
    fixed_bytes: int
    """That CUDA, NCCL and the driver take beside them; without a GPU staged copies, processes and the system."""
    nominal_bytes: int
    """Of the data sheet; without a GPU a rank's part of the host."""
    capacity_bytes: int
    """For tensors."""
    margin_bytes: int
    """Left over; below 0: lacking."""
    share: float
    """Peak over capacity."""
    fits: bool
    reliable: bool
    """Whether a run can count on it: up to 90 % of the capacity."""


class PlannedHostMemory(Planned):
    """Of each machine."""

    states_bytes: int
    """That ranks compute with: without a GPU all tensors at the peak of a step, else what is offloaded from it."""
    staged_bytes: int
    """Copies of the state that checkpoints are written from."""
    processes_bytes: int
    capacity_bytes: int
    """That a task may have."""
    fits: bool


class PlannedStep(Planned):
    """An optimizer step, and how fast it is."""

    parts: dict[str, float]
    """Seconds by part; together `seconds`."""
    seconds: float
    """Of a step beside which nothing is saved."""
    save_stall_seconds: float | None
    """That periodic saves add to it on average; null: not planned."""
    tokens_per_second: float
    """Of all ranks, without saves."""
    tokens_per_second_per_gpu: float
    peak_flops: float
    """Dense peak of a GPU in the type that computes, operations/s."""
    mfu: float
    """Model FLOPs (6 N + 12 L d S a token) over the peak."""
    hfu: float
    """With what backward computes again."""
    multiplied_parameters: int | None = None
    """N: all parameters but the rows of input embeddings, which are looked up; a head counts, tied or not. Null: of an
    older version."""


class PlannedBreakEven(Planned):
    """Between computation and network: below it the network is what a step takes."""

    tokens_per_pass: float
    """Of one rank, that take as long to compute as what is sent between machines meanwhile."""
    bytes_per_parameter: float
    """That enter a machine in a pass."""


class PlannedSaves(Planned):
    """Checkpoints, in the market of the configuration."""

    state_bytes: float
    stall_seconds: float
    """For which training stands still."""
    durable_seconds: float
    """From the beginning of a save until it is of use."""
    restart_seconds: float
    """After an interruption, once there are machines."""
    mtbf_seconds: float | None
    """Mean time between interruptions of the gang, at the upper end of the band; null: there are none."""
    best_interval_seconds: float | None
    """Of work between two saves; null: nothing interrupts."""
    best_every_steps: int | None
    every_steps: int | None
    """As configured; null: only at the end."""
    overhead: float
    """All other time over the productive time, as configured."""
    best_overhead: float
    """At the best interval, in whole steps."""
    seconds_over_best: float | None = None
    """That the whole takes longer with the configured interval, which is what the best one is best by. Null: a
    version before this one planned it."""
    usd_over_best: float | None
    """That the configured interval costs more; below 0: less, for what is asked of S3 costs too, and the best is of
    time alone. Null: the price is not known."""


class PlannedCost(Planned):
    """In US dollars, whole cents that add up."""

    usd: float
    usd_per_hour: float
    """Of one machine."""
    price_date: date
    source: str
    stale: bool = False
    """The price is more than a year older than the newest one that is known: it may be had no more."""
    machines: dict[str, float]
    """By what they do meanwhile."""
    services: dict[str, float]
    not_counted: tuple[str, ...]


class PlannedMarket(Planned):
    """Until the last token in one market; on spot, with machines taken away as often as the band's upper end has it."""

    market: str
    seconds: float
    parts: dict[str, float]
    """Seconds by what they are; together `seconds`."""
    interruptions: float
    """Expected."""
    cost: PlannedCost | None
    why: str = ""
    """Why there is no cost."""


class PlannedSpot(PlannedMarket):
    """With its range."""

    shortest_seconds: float
    """At the band's lower end."""
    bad_day_seconds: float | None
    """Were every day a bad one; null: that is no worse, or it would hardly ever end."""
    bad_day_endless: str = ""
    """Why there would be no end to it."""
    least_usd: float | None
    """In the cheapest zone, at the lower end."""
    most_usd: float | None
    """In the dearest zone, at the upper end."""
    bad_day_usd: float | None
    savings: tuple[float, float, float] | None
    """Of the cost on demand: at least, expected, at most; below 0: more is spent."""
    bad_day_savings: float | None


class PlannedBudget(Planned):
    """Time and cost until so many tokens are trained."""

    tokens: float
    steady: tuple[PlannedMarket, ...]
    """On demand, and in a capacity block."""
    spot: PlannedSpot | None
    why_no_spot: str = ""


class PlannedStop(Planned):
    """A limit of `budget:` that the run reaches before its last step: it saves and ends there."""

    key: str
    """`budget.max_hours` or `budget.max_cost_usd`."""
    limit: float
    needed: float
    """Of the same, until the last token."""
    tokens: float
    """About so many are trained by then."""
