"""When the training state is saved."""

from pydantic import Field

from convoy.config.base import Frozen


class CheckpointConfig(Frozen):
    """Periodic saves; the last step and every clean stop are always saved."""

    every_steps: int | None = Field(200, ge=1)
    """Save at each multiple of this many steps; null saves only at the end."""
    export_model: bool = True
    """At the end, rank 0 also writes a Hugging Face folder; needs the whole model in the memory of one host."""
