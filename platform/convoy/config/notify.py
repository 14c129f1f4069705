"""Who is notified of what becomes of a job."""

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from convoy.config.base import FrozenConfig

TARGET = "CONVOY_NOTIFY"
"""Variable with the target: one URL of apprise, or several with spaces between them. Targets hold passwords, so no
configuration has them."""

Moment = Literal["started", "preempted", "failed", "resumed", "finished", "regressed", "budget", "stalled"]


class NotifyConfig(FrozenConfig):
    """Moments of a job that are reported to `$CONVOY_NOTIFY`, each once per job."""

    on: tuple[Moment, ...] = ()
    """`started`: the first gang has formed. `preempted`: a machine will be reclaimed, and the attempt ends. `failed`:
    an attempt failed, and this run has no further one. `resumed`: a later generation trains. `finished`: the last step
    is done. `regressed`: a benchmark measured a lower rate than before. `budget`: a limit of `budget` ended the job.
    `stalled`: a rank made no progress and counts as hung."""
    secret: str | None = Field(None, min_length=1)
    """A source of Metaflow's `@secrets` that sets `CONVOY_NOTIFY`, e.g. `aws-secrets-manager.convoy`. Required with
    `batch` and `kubernetes`, whose machines do not see this one's environment."""

    @model_validator(mode="before")
    @classmethod
    def _holds_no_target(cls, values: Any) -> Any:
        """A target holds passwords, so no complaint shows it."""
        for name, value in (values if isinstance(values, dict) else {"on": values}).items():
            if re.search(r"(^|[\s'\"\[])[\w+-]+://", str(value)):
                raise ValueError(f"{name}: must not hold a target, which would be kept with the run; set {TARGET}")
        return values
