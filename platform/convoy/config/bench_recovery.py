"""What the checkpoint and recovery suites of a benchmark need to know beside the job that all cases share."""

from pydantic import Field

from convoy.config.base import Frozen


class PredictConfig(Frozen):
    """The job whose saves and loads are predicted from what was measured."""

    writers: int | None = Field(None, ge=1)
    """Ranks that write at once; null: as many as were measured."""
    storage_gb_per_second: float | None = Field(None, gt=0)
    """What the storage gives all of them together, in 10^9 bytes, such as the throughput that was bought with FSx for
    Lustre (its TiB × its MB/s per TiB); null: not known, and no limit."""
    least_mb_per_writer: int = Field(128, ge=0)
    """A state of which each rank writes less, in 10^6 bytes, is filled up to that where rates are measured: in a small
    one they are those of its few requests, and tell nothing of a large one."""


class CampaignConfig(Frozen):
    """A training on spot machines that is simulated with the stalls and recoveries that were measured."""

    days: float = Field(30, gt=0)
    """It lasts so long."""
    instance_type: str | None = None
    """Machine of each node, for its price and for how often it is taken away; null: the one on which saves were
    measured, and where that has no name (`cluster.instance_type`), p4d.24xlarge as an example."""
    region: str | None = None
    """AWS region of the price; null: that of the benchmark (`cluster.region`)."""
    nodes: int | None = Field(None, ge=1)
    """The gang stops when one of them is taken away; null: as many machines as saves were measured on, and 4 of
    others."""
    taken_per_month: float | None = Field(None, gt=0, lt=1)
    """Share of such machines that are taken away within a month; null: as the catalog has it, the upper end of its
    band."""
    bad_day_hours: float | None = Field(3.0, gt=0)
    """Mean time between interruptions of the gang on a bad day, which is simulated beside that; null: none is."""
    announced_share: float = Field(1.0, ge=0, le=1)
    """Of those, that have notice; AWS gives it as far as it can."""
    notice_seconds: float = Field(120.0, ge=0)
    """Between notice and end: what is not saved by then is lost."""
    replacement_seconds: float = Field(600.0, ge=0)
    """Until there is another machine in its place, added to each restart that was measured. The default is assumed: a
    machine is to be had at once, and boots and loads its image in ten minutes."""
    seed: int = 0
    """Of the random times."""


class RecoveryConfig(Frozen):
    """Which faults are put into gangs of this host, and the campaign that is simulated with what they show."""

    drills: tuple[str, ...] = Field(("node-kill", "spot-notice"), min_length=1)
    """As `convoy drill` lists them."""
    trials: int = Field(1, ge=1)
    """Of each drill; more tell more."""
    nodes: int = Field(2, ge=1)
    """Of a drill's gang, one process each."""
    campaign: CampaignConfig = CampaignConfig()
