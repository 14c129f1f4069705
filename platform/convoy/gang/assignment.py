"""What a worker is told, once, when it is forked."""

from pydantic import BaseModel, ConfigDict, Field

from convoy.config.run import RunConfig
from convoy.job.events.types import OUTAGE, PEER_LOST, UNFIT
from convoy.job.lineage import CommitRef

STOPPED = 3
"""Exit code of a worker that ended before the last step because all ranks agreed to, with its state committed."""

EXPECTED = 2
"""Exit code of a worker that failed for a reason that one line tells in full, such as bad input."""

RESERVED = (EXPECTED, STOPPED, PEER_LOST, OUTAGE, UNFIT)
"""Exit codes that tell an agent more than that a worker failed. A script's own exit code never has such a meaning."""


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


class Script(BaseModel):
    """A program of the user's own, which a gang's workers run in place of Convoy's training."""

    model_config = ConfigDict(frozen=True)

    entrypoint: str
    """A file that ends in `.py`, by its whole path, or the name of a module."""
    args: tuple[str, ...] = ()
    hang_seconds: float = 600.0
    """Once its ranks tell how far they are, none of them may say nothing for longer than this."""
    exit_seconds: float = 35.0
    """After its last line, a rank whose threads and exit handlers make no progress for so long is ended. By default it
    is longer than the 30 s that `Checkpoints` takes at most to close after an error."""

    @property
    def is_file(self) -> bool:
        return self.entrypoint.endswith(".py")

    @property
    def name(self) -> str:
        """For people."""
        return self.entrypoint.rpartition("/")[2]


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
    """Rank 0's listening socket, already bound to master_port: its number in the process that is asked."""
    reason_path: str
    """Where the worker leaves one line on why it failed."""
    board_path: str | None = None
    """Where the worker marks how far it is, and finds its agent's orders; None: nobody looks, and there are none."""
    check_node: bool = False
    """Check before the first step that no machine is far slower than the others."""
    script: Script | None = None
    """What to run; None: Convoy's training, as configured."""
    usd_per_hour: float | None = None
    """Price of the whole gang; None: not known."""
    spent_seconds: float = 0.0
    """Gang seconds of all earlier generations, failed ones too: what budgets count from."""
