"""What a page says, as a file of claims tells it. docs/audit.md has the keys with examples.

Every figure is text with its unit, or a number in the default unit of its key, or a list of such where the page says it
more than once. Keys are the field's own words; what a claim is about is told by where it stands.
"""

from typing import Annotated, Literal

from convoy.audit.quantities.kinds import (
    Bandwidth,
    Claims,
    Count,
    Figures,
    Gigabytes,
    Microseconds,
    Reads,
    Seconds,
    Share,
    Size,
    Whole,
)
from convoy.audit.run_claims import RunClaims


class CollectiveClaims(Claims):
    """One collective operation."""

    id: str = ""
    """Name of it, for the findings."""
    run: str = ""
    """id of the run whose machines it ran on; default: those of the page."""
    operation: str = "all_reduce"
    """all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, reduce or send_recv."""
    size: Annotated[Figures, Reads("message", "GB")] = ()
    """As nccl-tests counts it: of an all-gather the output."""
    ranks: Whole = ()
    """GPUs that take part."""
    nodes: Whole = ()
    """Machines that take part; without `ranks` both readings are tried, a rank for each and for each GPU."""
    gpus_per_node: Whole = ()
    """GPUs of a machine."""
    instance: str = ""
    """AWS instance type."""
    gpu: str = ""
    """Kind."""
    time: Microseconds = ()
    """Of one."""
    bandwidth: Bandwidth = ()
    """Where the page does not say whether of the algorithm or of the bus."""
    algorithm_bandwidth: Bandwidth = ()
    """Size over time."""
    bus_bandwidth: Bandwidth = ()
    """As nccl-tests defines it."""


class LinkClaims(Claims):
    """A link between GPUs or machines."""

    id: str = ""
    """Name of it, for the findings."""
    run: str = ""
    """id of the run whose machines it joins; default: those of the page."""
    scope: str = "inter_node"
    """`inter_node` (between machines) or `intra_node` (NVLink, within one)."""
    instance: str = ""
    """AWS instance type."""
    gpu: str = ""
    """Kind."""
    bandwidth: Bandwidth = ()
    """Of one machine between machines, or of one GPU where the text says `/GPU`; within a machine of one GPU."""
    peak: Annotated[Figures, Reads("exact_bandwidth", "GB/s")] = ()
    """That the page says the link has."""
    utilisation: Share = ()
    """bandwidth over peak."""
    directions: Literal["one", "both"] = "one"
    """Whether both directions are added up."""


class CheckpointClaims(Claims):
    """A checkpoint, and how it is saved and loaded."""

    id: str = ""
    """Name of it, for the findings."""
    run: str = ""
    """id of the run that it is of; default: that of the page."""
    model: str = ""
    """Name; default: the run's."""
    parameters: Size = ()
    """Default: the run's."""
    contents: Literal["weights", "training_state", "adapters", ""] = ""
    """Weights alone, with the optimizer's state, or of LoRA; empty: the page does not say."""
    size: Gigabytes = ()
    """Of the whole checkpoint, or of one rank or machine where the text says `/rank` or `/node`."""
    to: Literal["shared", "nvme", "memory"] = "shared"
    """Where it is saved: storage over the network (S3, FSx, NFS), local disks, or host memory."""
    instance: str = ""
    """AWS instance type."""
    nodes: Whole = ()
    """Machines that save."""
    save_time: Seconds = ()
    """Until it is saved."""
    load_time: Seconds = ()
    """Until it is loaded."""
    stall: Seconds = ()
    """That training stands still for a save."""
    bandwidth: Bandwidth = ()
    """Of the save, all machines together, or of one where the text says `/node`."""
    interval: Seconds = ()
    """Between two saves."""
    interval_steps: Count = ()
    """Steps between two saves; also `interval: every 500 steps`."""
    overhead: Share = ()
    """Of the time; stall (else save_time) over interval."""


class PageClaims(RunClaims):
    """The whole file. What of a run stands here is a run by itself, whose settings those below `runs` share."""

    page: str = ""
    """Title or address of what is audited."""
    date: str = ""
    """Of the page, `2025-06-01`."""
    runs: tuple[RunClaims, ...] = ()
    collectives: tuple[CollectiveClaims, ...] = ()
    links: tuple[LinkClaims, ...] = ()
    checkpoints: tuple[CheckpointClaims, ...] = ()
