"""What a worker is told, once, on its standard input."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from convoy.config.run import RunConfig
from convoy.job.lineage import CommitRef

STOPPED = 3
"""Exit code of a worker that ended before the last step because all ranks agreed to, with its state committed."""

EXPECTED = 2
"""Exit code of a worker that failed for a reason that one line tells in full, such as bad input."""


class Place(BaseModel):
    """Where a worker stands in the gang."""

    model_config = ConfigDict(frozen=True)

    rank: int
    local_rank: int
    node: int
    nodes: int
    nproc_per_node: int
    host_rank: int
    """Place among the ranks on the same host: of several nodes, where they share one."""
    host_ranks: int
    """How many ranks there are on the host."""
    threads: int
    """Intra-op CPU threads."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.nproc_per_node


class Assignment(BaseModel):
    """A worker's whole task."""

    model_config = ConfigDict(frozen=True)

    config: RunConfig
    job: str
    job_uri: str
    root: str
    data_id: str
    """Which prepared data, by content."""
    fingerprint: str
    """Of the data as this job uses it."""
    generation: int
    parent: CommitRef | None
    """The commit that the generation was formed to go on from; None: from the start."""
    tiers: list[str] = Field(default_factory=list)
    """URIs of the job on each shared tier, in order: the root, which is `job_uri`, first."""
    place: Place
    master_host: str
    master_port: int
    listen_fd: int | None = None
    """Rank 0's listening socket, already bound to master_port."""
    agent_pid: int
    """The process that started the worker, and without which it may not live."""
    reason_path: str
    """Where the worker leaves one line on why it failed."""
    usd_per_hour: float | None = None
    """Price of the whole gang; None: not known."""
    spent_seconds: float = 0.0
    """Gang seconds of all earlier generations, failed ones too: what budgets count from."""


class Outcome(BaseModel):
    """How the workers of a node ended."""

    model_config = ConfigDict(frozen=True)

    outcome: Literal["finished", "stopped", "failed"]
    message: str = ""
    """For a failure: the first cause on this node, in plain words, with the worker's last lines."""
