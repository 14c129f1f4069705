"""Events of a generation: how the gang was formed, of which machines, how its workers came up, and how it ended."""

from datetime import date
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from convoy.config.train import ParamDtype
from convoy.job.events.event import Event


class Rent(BaseModel):
    """How a machine was bought, by the prices that were known when its run began."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    instance: str
    """E.g. `p4d.24xlarge`."""
    market: str
    """on_demand, spot or capacity_block."""
    region: str
    usd_per_hour: float | None = None
    """US dollars for the machine and hour; None: not known."""
    price_date: date | None = None
    """Day on which the price was observed."""
    source: str = ""
    usd_per_hour_on_demand: float | None = None
    """What the same machine costs on demand there; None: not known."""
    on_demand_date: date | None = None
    """Day on which that was observed."""
    on_demand_source: str = ""


class ParamDtypeChoice(BaseModel):
    """How `train.param_dtype: auto` was decided for a new job, on node 0's machine."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    param_dtype: ParamDtype
    device: str
    flops: dict[ParamDtype, float] = {}
    """Operations/s of one rank in products of the job's matrix sizes, by type; empty on a GPU, where bf16 is chosen
    without a measurement."""

    def in_words(self) -> str:
        """The type, and what it was chosen by."""
        if not self.flops:
            return f"{self.param_dtype}, as on any GPU"
        rates = ", ".join(f"{rate / 1e9:.3g} GFLOP/s in {dtype}" for dtype, rate in self.flops.items())
        return f"{self.param_dtype}, the faster type here: a rank multiplies the job's matrices at {rates}"


class GenerationStarted(Event):
    """An agent formed or joined the gang of a generation. Only node 0's carries the run's facts."""

    kind: Literal["generation_started"] = "generation_started"
    run: str = ""
    """Metaflow pathspec, e.g. `TrainFlow/123`."""
    attempt: int = 0
    nodes: int = 1
    world_size: int = 1
    parent_generation: int | None = None
    parent_step: int | None = None
    """The commit this generation goes on from; None: from the start."""
    host: str = ""
    tiers: list[str] = Field(default_factory=list)
    """URIs of the job on each shared tier, in order: the root first."""
    rent: Rent | None = None
    """Of this node's machine; None: it has no price, as this host in a local run."""
    training: str = ""
    """`training_hash` of its configuration; empty: a script, or a log from before it was recorded."""
    param_dtype: ParamDtypeChoice | None = None
    """None: the configuration or an earlier generation of the job settled the type."""


class WorkerReady(Event):
    """A rank reached a point of its start-up."""

    kind: Literal["worker_ready"] = "worker_ready"
    phase: Literal["imported", "connected", "built", "restored", "first_step"]
    seconds: float
    """Since the worker's process began."""


class GangStopped(Event):
    """No worker of this node is left, nor anything that one of them started."""

    kind: Literal["gang_stopped"] = "gang_stopped"
    seconds: float
    """Since they were ordered to end, or were killed."""


class GenerationEnded(Event):
    """The agent of a node saw its workers end."""

    kind: Literal["generation_ended"] = "generation_ended"
    outcome: Literal["finished", "stopped", "failed", "preempted"]
    step: int = 0
    """Steps done; meaningful from node 0."""
