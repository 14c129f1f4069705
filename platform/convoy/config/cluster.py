"""Where the gang runs."""

from datetime import date
from typing import Literal

from pydantic import Field, model_validator

from convoy.config.base import FrozenConfig
from convoy.config.errors import ConfigError

Market = Literal["on_demand", "spot", "capacity_block", "reserved"]
"""How machines of a run are bought."""

NetworkRequirement = Literal["efa", "rdma", "gdr"]
"""Of traffic between hosts: RDMA over EFA, any RDMA, RDMA with GPUDirect."""

Day = date
"""The type, by a name that no field of a class here has."""


class PriceConfig(FrozenConfig):
    """What a machine costs, for example under a contract of your own; replaces the catalog's price."""

    usd_per_hour: float = Field(gt=0, le=1e6)
    """US dollars for one machine and hour."""
    date: date
    """Day of the price."""
    source: str = "cluster.price"
    """Source of the price, displayed with the cost."""
    usd_per_hour_on_demand: float | None = Field(None, gt=0, le=1e6)
    """On-demand price of the same machine, with which the run's cost is compared. Default: the newest known to the
    catalog or `convoy prices refresh` when the run starts."""
    on_demand_date: Day | None = None
    """Day of that price; required with it."""
    on_demand_source: str = "cluster.price"
    """Source of that price, displayed with the comparison."""

    @model_validator(mode="after")
    def _on_demand_is_dated(self) -> "PriceConfig":
        if self.usd_per_hour_on_demand is not None and self.on_demand_date is None:
            raise ValueError(f"usd_per_hour_on_demand = {self.usd_per_hour_on_demand:g}: must come with on_demand_date")
        return self


class FileSystemPriceConfig(FrozenConfig):
    """What a file system costs, for example under a contract of your own; replaces the catalog's price."""

    usd_per_gib_month: float = Field(gt=0, le=1e3)
    """US dollars for one GiB of its size and month."""
    date: date
    """Day of the price."""
    source: str = "cluster.file_system.price"
    """Source of the price, displayed with the cost."""


class FileSystemConfig(FrozenConfig):
    """A file system of FSx for Lustre on SSD that exists for as long as the job: it is paid for by its size, whatever
    is written to it."""

    gib: int = Field(ge=1200)
    """Its size: 1200 or a multiple of 2400, as `fsx_gib` of a stack in `infra/`."""
    mb_per_second_per_tib: Literal[125, 250, 500, 1000] = 250
    """Throughput class, in 10^6 bytes for each TiB. Default: that of the stacks in `infra/`."""
    price: FileSystemPriceConfig | None = None
    """Default: the catalog's, which has the class 125 alone."""

    @model_validator(mode="after")
    def _has_a_size_that_is_sold(self) -> "FileSystemConfig":
        if self.gib != 1200 and self.gib % 2400:
            raise ValueError(f"gib = {self.gib}: must be 1200 or a multiple of 2400")
        return self


class ClusterConfig(FrozenConfig):
    """Backend, machines and what a task needs there."""

    backend: Literal["local", "batch", "kubernetes"] = "local"
    """Processes on this host, an AWS Batch multi-node job, or a Kubernetes JobSet."""
    nodes: int = Field(2, ge=1)
    """Nodes of the gang, one per machine (local: processes on this host)."""
    nproc_per_node: int | None = Field(None, ge=1)
    """Ranks per node. Default: the instance's GPUs; locally the GPUs of this host divided by the nodes, or 1."""
    instance_type: str | None = None
    """Machine of each node, e.g. `p4d.24xlarge`; must be in the catalog. Needed on `batch` and `kubernetes`."""
    market: Market = "on_demand"
    """How the machines are bought; determines the price. `reserved` changes nothing else: machines start as on demand
    and have the hourly price of an instance that is reserved for a year with nothing upfront."""
    region: str = "us-east-1"
    """AWS region of the price."""
    price: PriceConfig | None = None
    """Of one machine. Default: the newest that the catalog or `convoy prices refresh` has of the type, market and
    region, as it is when the run starts."""
    file_system: FileSystemConfig | None = None
    """The file system of the job, which plan and ledger add to the cost. Default: none, or one that is not counted."""
    image: str | None = None
    """Container image with torch, NCCL, the EFA plugin and this package's requirements."""
    queue: str | None = None
    """AWS Batch job queue. Default: Metaflow's own setting."""
    iam_role: str | None = None
    """AWS Batch job role. Default: Metaflow's own setting."""
    service_account: str | None = None
    """Kubernetes service account. Default: Metaflow's own setting."""
    namespace: str | None = None
    """Kubernetes namespace. Default: Metaflow's own setting."""
    node_selector: dict[str, str] = {}
    """Kubernetes labels that nodes must have, in addition to the instance type."""
    tolerations: tuple[dict[str, str], ...] = ()
    """Kubernetes tolerations, in addition to the one for `nvidia.com/gpu`."""
    persistent_volume_claims: dict[str, str] = {}
    """Kubernetes claims and where each is mounted, e.g. `{fsx: /fsx}`."""
    host_volumes: tuple[str, ...] = ()
    """AWS Batch: folders of the host to mount, e.g. `/fsx`."""
    shared_memory_mib: int | None = Field(None, ge=64)
    """Size of /dev/shm. Default: an eighth of the instance's memory, or the size of two staged copies of a node's part
    of the state."""
    require_network: NetworkRequirement | None = None
    """What must carry the traffic of GPUs between hosts: `efa` (RDMA over EFA), `rdma` (any RDMA) or `gdr` (RDMA with
    GPUDirect); null: anything. Where NCCL's log shows something else after the first steps, the attempt ends with the
    first cause and the fix. A log that shows nothing, or a run on one host, does not end it."""
    retries: int = Field(0, ge=0, le=4)
    """Metaflow retries of the gang's step; each resumes from the newest checkpoint."""
    minutes_between_retries: int = Field(2, ge=0)
    """Pause before a retry (Metaflow ignores it locally)."""
    time_limit_hours: float = Field(120, gt=0)
    """Longest life of one attempt on Batch or Kubernetes."""


def check_backend(cluster: ClusterConfig) -> None:
    """Raises ConfigError where its backend takes no such gang, or none in that market."""
    # AWS Batch user guide, "Compute environments for multi-node parallel jobs". @parallel submits a
    # multi-node job even for one node, and on a spot queue AWS leaves it RUNNABLE for ever.
    if cluster.backend == "batch" and cluster.market == "spot":
        raise ConfigError(
            "cluster.market = spot: AWS Batch runs no multi-node jobs on spot instances; "
            "use on_demand or capacity_block, or cluster.backend = kubernetes"
        )
    if cluster.backend == "kubernetes" and cluster.nodes < 2:
        raise ConfigError(
            f"cluster.nodes = {cluster.nodes}: must be at least 2 with cluster.backend = kubernetes "
            "(Metaflow's JobSet has a control pod and one or more workers)"
        )
