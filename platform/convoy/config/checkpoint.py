"""When and where the training state is saved, and how long it is kept."""

from typing import Literal

from pydantic import Field, field_validator

from convoy.config.base import FrozenConfig


class StoreConfig(FrozenConfig):
    """How objects are put to S3; nothing of it applies to gs://. Credentials and region come from boto's own chain."""

    endpoint_url: str | None = None
    """Endpoint of an S3-compatible store; null: AWS, or $AWS_ENDPOINT_URL."""
    sse_kms_key_id: str | None = None
    """Encrypt objects with this KMS key (ARN or id); null: as the bucket is configured."""
    storage_class: Literal["STANDARD", "INTELLIGENT_TIERING", "STANDARD_IA", "ONEZONE_IA", "EXPRESS_ONEZONE"] = (
        "STANDARD"
    )
    """Storage class of the shards; commits and records are always STANDARD, or EXPRESS_ONEZONE."""


class RetentionConfig(FrozenConfig):
    """Which checkpoints are kept. The newest verified ones are never deleted."""

    keep_last: int = Field(3, ge=1)
    """Newest verified checkpoints that are never deleted."""
    keep_every_steps: int | None = Field(None, ge=1)
    """Also keep one checkpoint for each multiple of this many steps, for ever."""


class CheckpointConfig(FrozenConfig):
    """Periodic saves; the last step and every clean stop are always saved."""

    every_steps: int | None = Field(200, ge=1)
    """Save at each multiple of this many steps; null saves only at the end."""
    tiers: tuple[str, ...] = ()
    """Further shared places, in order, such as `s3://bucket/prefix` or `gs://bucket/prefix`. The newest commit under
    `root` is copied to each of them as often as it keeps up, and the last commit always. While `root` accepts no
    writes, saves go to the next tier."""
    root_is_shared: bool = False
    """`root` is a path that every machine of a remote cluster has mounted, such as FSx for Lustre."""
    deadline_seconds: float = Field(900.0, gt=0, le=3600)
    """Time limit of a save; one that is not committed by then is abandoned, while training continues. At most an hour,
    because older files without a commit may be removed."""
    write_mb_per_second: float | None = Field(100.0, gt=0)
    """Rate at which each rank writes a save during training, in 10^6 bytes per second, so that steps are hardly
    affected; null: as fast as the storage accepts. A large part is written faster, so that it takes at most 30 s. The
    last save, and one that another save waits behind, are not limited."""
    alert_after_failures: int = Field(3, ge=1)
    """This many consecutive saves without a commit raise an alert on the card."""
    verify: bool = True
    """Read the newest commit back as often as the storage keeps up, and the last commit always; a node reads parts that
    another one wrote. Only verified commits count for retention."""
    retention: RetentionConfig = RetentionConfig()
    store: StoreConfig = StoreConfig()
    export_model: bool = True
    """At the end, rank 0 also writes a Hugging Face folder; needs the whole model in the memory of one host."""

    @field_validator("tiers")
    @classmethod
    def _tiers_differ(cls, tiers: tuple[str, ...]) -> tuple[str, ...]:
        if len({tier.rstrip("/") for tier in tiers}) < len(tiers):
            raise ValueError("each tier may be named once")
        return tiers
