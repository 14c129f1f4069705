"""What a gang, a node and a rank are to do, and the position of each."""

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, Field

from convoy.config.run import RunConfig
from convoy.job.events.registry import OUTAGE, PEER_LOST, UNFIT, ParamDtypeChoice, Rent
from convoy.job.lineage import CommitRef

STOPPED = 3
"""Exit code of a worker that ended before the last step because all ranks agreed to, with its state committed."""

EXPECTED = 2
"""Exit code of a worker that failed for a reason that one line explains in full, such as bad input."""

RESERVED = (EXPECTED, STOPPED, PEER_LOST, OUTAGE, UNFIT)
"""Exit codes that mean more to an agent than a failed worker. A script's own exit code never has such a meaning."""

NOTICE_FILE = Path("/tmp/spot_termination_notice")
"""Where Metaflow's monitor of spot instances writes when the instance is reclaimed."""


class Script(BaseModel, frozen=True):
    """A user's program, which a gang's workers run in place of Convoy's training."""

    entrypoint: str
    """A file that ends in `.py`, by its whole path, or the name of a module."""
    args: tuple[str, ...] = ()
    hang_seconds: float = 600.0
    """Once its ranks report progress, none of them may be silent for longer than this."""
    exit_seconds: float = 35.0
    """After its last line, a rank whose threads and exit handlers make no progress for this long is ended. By default
    it is longer than the 30 s that `Checkpoints` takes at most to close after an error."""

    @property
    def is_file(self) -> bool:
        return self.entrypoint.endswith(".py")

    @property
    def name(self) -> str:
        """For people."""
        return self.entrypoint.rpartition("/")[2]


@dataclass(frozen=True)
class Task:
    """What the gang is to do."""

    config: RunConfig
    job: str
    root: str
    data_id: str
    """Which prepared data, by content."""
    fingerprint: str
    """Of the data as this job uses it."""
    usd_per_hour: float | None = None
    """Price of the whole gang; None: unknown."""
    spent_seconds: float = 0.0
    """Gang seconds of all earlier attempts and runs."""
    has_record: bool = False
    """The job has a record: if it is missing, its root is not there."""
    rent: Rent | None = None
    """How each node's machine was bought; None: it has no price."""
    script: Script | None = None
    """What the workers run; None: Convoy's training, as configured."""
    dtype_choice: ParamDtypeChoice | None = None
    """How this node settled `train.param_dtype: auto`; None: it did not have to."""


class RankPosition(BaseModel, frozen=True):
    """A rank's position in the gang."""

    rank: int
    local_rank: int
    node: int
    nodes: int
    nproc_per_node: int
    host_rank: int
    """Position among the ranks on the same host, which several nodes may share."""
    host_ranks: int
    """Number of ranks on the host."""
    threads: int
    """Intra-op CPU threads."""

    @property
    def world_size(self) -> int:
        return self.nodes * self.nproc_per_node


@dataclass(frozen=True)
class Node:
    """A node's position in the flow and the gang."""

    index: int
    nodes: int
    nproc_per_node: int
    main_host: str
    run: str
    """Metaflow pathspec of the run."""
    formation: str
    """Names this attempt of this step, the same on all nodes."""
    attempt: int
    shares_host: bool
    """All nodes of the gang are on this host."""
    retries: int = 0
    """How often Metaflow tries the step again in this run, after its first attempt."""
    notice_file: Path = NOTICE_FILE
    """Where Metaflow's monitor of spot instances writes."""

    @property
    def leads(self) -> bool:
        """Node 0 forms the generations and decides for all: where Metaflow runs a gang, it ends with node 0's task."""
        return self.index == 0

    @property
    def world_size(self) -> int:
        return self.nodes * self.nproc_per_node

    @property
    def first_rank(self) -> int:
        """Rank of its first worker."""
        return self.index * self.nproc_per_node

    @property
    def ranks_on_host(self) -> int:
        """Number of ranks that share the cores and GPUs of the node's host."""
        return self.nproc_per_node * (self.nodes if self.shares_host else 1)

    def threads_per_rank(self, config: RunConfig) -> int:
        """Intra-op CPU threads of a rank: the host's cores shared evenly by the ranks on it, unless configured."""
        if config.train.threads_per_rank is not None:
            return config.train.threads_per_rank
        return max(1, usable_cores() // self.ranks_on_host)

    def position_of(self, local_rank: int, threads: int) -> RankPosition:
        """The position of one of the node's workers."""
        rank = self.first_rank + local_rank
        return RankPosition(
            rank=rank,
            local_rank=local_rank,
            node=self.index,
            nodes=self.nodes,
            nproc_per_node=self.nproc_per_node,
            host_rank=rank if self.shares_host else local_rank,
            host_ranks=self.ranks_on_host,
            threads=threads,
        )


def usable_cores() -> int:
    """Number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


class Assignment(BaseModel, frozen=True):
    """A worker's whole task, passed to it when it is forked."""

    config: RunConfig
    job: str
    job_uri: str
    root: str
    data_id: str
    fingerprint: str
    generation: int
    parent: CommitRef | None
    """The commit that the generation continues from; None: from the start."""
    tiers: list[str] = Field(default_factory=list)
    """URIs of the job on each shared tier, in order: the root, which is `job_uri`, first."""
    place: RankPosition
    master_host: str
    master_port: int
    listen_fd: int | None = None
    """Rank 0's listening socket, already bound to master_port: its number in the process that forks the worker."""
    reason_path: str
    """Where the worker leaves one line on why it failed."""
    board_path: str | None = None
    """Where the worker marks its progress, and finds its agent's orders; None: nobody reads it, and there are none."""
    check_node: bool = False
    """Check before the first step that no machine is far slower than the others."""
    script: Script | None = None
    usd_per_hour: float | None = None
    spent_seconds: float = 0.0
    """Gang seconds of all earlier generations, failed ones too: budgets count from there."""
