"""One case of a benchmark: a variant, measured in a gang together with those that it is compared with."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError, field_validator

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.catalog.prices import Price, configured_prices
from convoy.config.cluster import PriceConfig
from convoy.report.train_report import NetworkUse

SCHEMA = 1
"""Raised when a key changes its meaning or goes away; new keys may come without it."""

CHANGED = ", cut"
"""Ends the name of a model that was changed so that ranks and stages can share it: nothing of it applies to the model
itself."""

_RETIRED = frozenset({"power", "power_watts", "energy_joules_per_step"})
"""Values of earlier versions, and reasons why they were not measured, which nothing shows any more."""

LOCAL = "local"
"""Name of the store that is the run's own root."""

Status = Literal["measured", "refused", "failed"]


class FrozenResult(BaseModel):
    """A measured fact, which does not change. Keys of later versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


class Block(FrozenResult):
    """Some steps in a row, between two synchronisations of all ranks. Blocks of one number in the cases of a group were
    measured one right after the other: they are a pair. Of a case with `varied` each is a whole gang's."""

    number: int
    steps: int = Field(ge=1)
    seconds: float = Field(gt=0)
    """Wall time of a step: the slowest rank's."""
    cpu_seconds: float = Field(ge=0)
    """CPU time of a step: of all threads of all ranks together."""
    parts: dict[str, float] = {}
    """Seconds of a step by part, such as forward: rank 0's, of the block's last step. `optimizer` of ours has no
    waiting in it."""
    network_bytes: float | None = None
    """Bytes that the gang's hosts sent for a step, over all interfaces; None: not measured, as between GPUs."""


class Hardware(FrozenResult):
    """The hardware of a case, the same for each rank."""

    device: str
    """Name of the GPU as CUDA reports it, or the CPU's model name."""
    nodes: int = Field(ge=1)
    """Machines: processes that stand for nodes on one host are one."""
    ranks: int = Field(ge=1)
    """Ranks at work, in all of `jobs` trainings together."""
    jobs: int = Field(1, ge=1)
    """Independent trainings that ran at once, of equally many ranks."""
    threads: int = Field(ge=1)
    """Intra-op CPU threads of a rank."""
    cores: int = Field(ge=1)
    """Cores of a host that its processes may use."""
    pinned: bool = False
    """Each rank keeps to its own share of them."""
    memory_bytes: int = Field(ge=0)
    """Memory of a host; 0: not known."""
    instance_type: str | None = None
    peak_tflops: float | None = None
    """Dense peak of one GPU in the compute dtype; None: not known, then there is no MFU."""
    matmul_tflops: float | None = None
    """Measured rate of a plain matmul, of one rank while all others do the same; None: not measured."""

    @property
    def machine(self) -> str:
        """`p4d.24xlarge`, or the device's name where the machine has none."""
        return self.instance_type or self.device

    @property
    def machines(self) -> str:
        """`4 × p4d.24xlarge`, or by the device's name where the machine has none."""
        return self.machine if self.nodes == 1 else f"{self.nodes} × {self.machine}"


class HostUse(FrozenResult):
    """What one host of a gang used for a case. Hosts are in the order of their ranks."""

    host: int = Field(ge=0)
    ranks: int = Field(ge=0)
    """Ranks there that had a part in the case."""
    memory_peak_bytes: int | None = None
    """Tensors at the peak of each rank's step, added up, where they compute: in the memory of its GPUs, or in its own;
    None: not measured for the case alone."""
    offloaded_bytes: int | None = None
    """Tensors that ranks with a GPU hold in the host's memory between steps; None: as above."""
    memory_used_bytes: int = Field(0, ge=0)
    """Most of the host's own memory that was in use after a block, by all processes and so by all cases of the gang."""
    sent_bytes: float
    """For a step, over all of its network interfaces other than the loopback: a mean over blocks."""
    received_bytes: float
    rdma_sent_bytes: float | None = None
    """For a step, by all of its RDMA adapters, which the interfaces do not count; None: it has none."""
    rdma_received_bytes: float | None = None

    @property
    def adapter_bytes(self) -> float:
        """Sent in a step by adapters of either kind."""
        return self.sent_bytes + (self.rdma_sent_bytes or 0.0)


class Provenance(FrozenResult):
    """Where a figure comes from."""

    measured: AwareDatetime
    """UTC, when the case's first block began."""
    commit: str
    """Commit of Convoy's sources, with `+changes` where they had any; empty: not from a checkout."""
    versions: dict[str, str]
    environment: dict[str, str]
    """Variables that are known to change speed, those that were set; never the whole environment."""
    command: str = ""


class CasePrediction(FrozenResult):
    """What the planner said of a case before its first block: from the machine and from constants, and from no step
    that this benchmark measured."""

    calibration: str
    """Date and data of the constants."""
    machine: MeasuredMachine | None = None
    """As the slowest rank measured it before anything else; None: the catalog's figures were used."""
    nodes: int = Field(1, ge=1)
    """Of the training that was planned, of which `jobs` ran at once,"""
    ranks_per_node: int = Field(1, ge=1)
    """and its ranks on each."""
    step_seconds: float | None = None
    """None: `why_no_step` says why."""
    why_no_step: str = ""
    peak_bytes: int | None = None
    """Tensors at the peak of a step, of the rank that takes most; None: `why_no_peak` says why."""
    why_no_peak: str = ""
    saved_bytes: float | None = None
    """Bytes of a checkpoint; None: the case saves none."""


class MeasuredStore(FrozenResult):
    """The store that a case of the checkpoint suite is."""

    uri: str
    """`local`, a folder, or a bucket with a prefix, as configured."""
    kind: Literal["folder", "s3", "gs"]
    region: str | None = None
    """Region of a bucket; None: no reply named it, as none of Google's does."""


class Case(FrozenResult):
    """One file of results."""

    schema_version: int = SCHEMA
    suite: str
    """E.g. `throughput`."""
    group: str
    """Names the gang in which its cases took turns: only within one are they compared as pairs."""
    name: str
    """Name of the variant, unique within the group."""
    baseline: str | None = None
    """Name of the case of the group that this one is compared with; None: it is that case."""
    status: Status = "measured"
    reason: str = ""
    """Why it was refused or failed, or what went wrong in it, in one line."""
    model: str
    parameters: int = Field(ge=0)
    unit: str = "tokens"
    """What is counted as tokens: those, or the samples of another kind of model, such as images."""
    tokens_per_step: int = Field(ge=0)
    """Targets that count, of all ranks together, and of all jobs; where steps have unequally many, their mean."""
    flops_per_token: float | None = None
    """Forward and backward without recomputation; None: not known."""
    config: dict[str, Any]
    """Everything that was set but where jobs are kept, as plain data."""
    hardware: Hardware
    provenance: Provenance
    warm_up_steps: int = Field(0, ge=0)
    """Left out at the beginning."""
    steady: bool = True
    """Warm-up ended because the steps' times no longer drifted; False: because it had gone on for long enough."""
    blocks: tuple[Block, ...] = ()
    memory_peak_bytes: int | None = None
    """Tensors at the peak of a step, of the rank that took most: on the GPU where there is one, else on the host; None:
    not measured for it alone."""
    hosts: tuple[HostUse, ...] = ()
    """What each host used; empty: not measured."""
    losses: tuple[float, ...] = ()
    """Losses of the first steps, on the same data in all cases of a group: they show whether these compute the same."""
    varied: tuple[str, ...] = ()
    """Variables in which the gangs of the group's cases were to differ: each case then has gangs of its own, which took
    turns with the others', and each of its blocks is the medians of one gang. Empty: all cases were in one gang."""
    lab: str = ""
    """Hosts and links of the lab it was measured in: network namespaces of one host, with limited rates. Empty: real
    machines."""
    carried_by: tuple[NetworkUse, ...] = ()
    """What carried the traffic of GPUs between hosts by NCCL's log, most ranks first; empty: one host, or no GPUs."""
    values: dict[str, float] = {}
    """Further figures of the suite, by documented names."""
    samples: dict[str, tuple[float, ...]] = {}
    """Independent measurements of other things than steps, such as saves, by documented names."""
    not_measured: dict[str, str] = {}
    """Quantities that this machine cannot measure, and why."""
    store: MeasuredStore | None = None
    """None: the case is no store."""
    predicted: CasePrediction | None = None
    """None: nothing was predicted, as in drills and in benchmarks of earlier versions."""

    @field_validator("values", "not_measured")
    @classmethod
    def _without_retired(cls, facts: dict[str, Any]) -> dict[str, Any]:
        return {name: fact for name, fact in facts.items() if name not in _RETIRED}

    @property
    def key(self) -> str:
        """Unique among all files of a folder."""
        return key_of(self.suite, self.group, self.name)

    def cluster_setting(self, key: str) -> str | None:
        """A value of `cluster:` in its configuration, such as the region; None: it has none."""
        cluster = self.config.get("cluster")
        value = cluster.get(key) if isinstance(cluster, Mapping) else None
        return value if isinstance(value, str) else None

    @property
    def own_prices(self) -> tuple[Price, ...]:
        """Prices of one machine in `cluster.price`: in the market in which it was bought, and on demand."""
        cluster, name = self.config.get("cluster"), self.hardware.instance_type
        if name is None or not isinstance(cluster, Mapping) or not cluster.get("price"):
            return ()
        try:
            undated = cluster["price"].get("on_demand_date") is None  # older results may name it without a day
            price = {key: value for key, value in cluster["price"].items() if not (undated and "on_demand" in key)}
            return configured_prices(PriceConfig.model_validate(price), name, cluster["market"], cluster["region"])
        except (AttributeError, KeyError, ValidationError):  # of another version, or by hand
            return ()


def key_of(suite: str, group: str, name: str) -> str:
    """A case's: suites name their groups `SUITE-MODEL…`, which need not be repeated."""
    return "-".join([group, name] if f"{group}-".startswith(f"{suite}-") else [suite, group, name])
