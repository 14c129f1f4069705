"""What a gang is to do, and who a node is in it: what its agent is told."""

from dataclasses import dataclass
from pathlib import Path

from convoy.config.run import RunConfig
from convoy.gang.assignment import Script
from convoy.gang.notices.sources import NOTICE_FILE
from convoy.job.events.types import ParamDtypeChoice, Rent


@dataclass(frozen=True)
class Node:
    """Who this node is in the flow."""

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


@dataclass(frozen=True)
class Task:
    """What the gang is to do."""

    config: RunConfig
    job: str
    root: str
    data_id: str
    fingerprint: str
    usd_per_hour: float | None
    spent_seconds: float = 0.0
    """Gang seconds of all earlier attempts and runs."""
    known: bool = False
    """The job has a record: without one, its root is not there."""
    rent: Rent | None = None
    """How each node's machine was bought; None: it has no price."""
    script: Script | None = None
    """What the workers run; None: Convoy's training, as configured."""
    dtype_choice: ParamDtypeChoice | None = None
    """How this node settled `train.param_dtype: auto`; None: it did not have to."""
