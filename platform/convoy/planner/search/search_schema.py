"""The result of a search over machines, as `convoy plan search` prints it. docs/reference/plan-formats.md#search."""

from datetime import date

from convoy.planner.plan_parts import Planned
from convoy.planner.plan_schema import Keys

SCHEMA = 1
"""Raised when a key changes its meaning or goes away; new keys may come without it."""


class Found(Planned):
    """The best way on so many machines of a type, in one market."""

    instance_type: str
    nodes: int
    market: str
    keys: Keys
    """With which what `laid_on` names becomes this, as for `--set`: the machines and their market, how it is trained
    there, how often it is saved, and whatever else was asked for."""
    trained: Keys = {}
    """How it is trained there, whatever it is laid on: what is searched of `train`, what of `parallel` differs from the
    defaults, and how often it is saved."""
    step_seconds: float
    tokens_per_second: float
    """Of all ranks, without saves."""
    mfu: float
    memory_share: float
    """Of what a GPU has for tensors."""
    hours: float
    """Until the last token, saves and interruptions included; on spot at the upper end of the band."""
    usd: float | None
    """Null: the price is not known."""
    least_usd: float | None
    """On spot: in the cheapest zone, at the lower end of the band."""
    most_usd: float | None
    """On spot: in the dearest zone, at the upper end."""
    usd_per_hour: float | None
    """Of one machine."""
    price_date: date | None
    price_source: str | None
    stale: bool
    """Its price is more than a year older than the newest one that is known: it may be had no more."""
    pareto: bool
    """Within the limits, nothing else is both cheaper and faster; never of what is stale, nor by what is."""
    within: bool
    """The limits that were given."""


class Unfit(Planned):
    """Machines on which nothing can be counted on to fit, or of which nothing can be told."""

    instance_type: str
    nodes: int
    market: str | None = None
    """Null: in none."""
    why: str


class PlanSearch(Planned):
    """By cost, cheapest first; then by cost what has an old price; what has no price comes last, fastest first."""

    schema_version: int = SCHEMA
    model: str
    parameters: int
    tokens: float
    sequence_length: int
    global_batch: int
    region: str
    max_usd: float | None
    max_hours: float | None
    laid_on: str = ""
    """File or preset of configs/train that the keys are laid on; empty: the configuration that was searched."""
    found: tuple[Found, ...]
    unfit: tuple[Unfit, ...]
    refused: tuple[str, ...] = ()
    """What the configured backend does not run and is left out: why, each once."""
    loosen: tuple[str, ...]
    """Where nothing is within the limits: how far each would have to go, the other one kept."""
    no_spot: tuple[str, ...]
    """Types of which nobody knows how often they are taken away: there is no forecast of spot."""
    assumed: tuple[str, ...]
    """What stands for measurements, each with its value, day and source."""
    calibration: str
    """Day and data of the constants of the step's time."""
