"""Notices that a machine will be taken away, and what is done about them."""

from typing import Literal

from pydantic import Field

from convoy.config.base import Frozen


class NoticesConfig(Frozen):
    """What a notice does. One that says when the machine goes always ends the attempt, with a save if there is time."""

    rebalance: Literal["ignore", "save", "drain"] = "save"
    """On EC2's rebalance recommendation, which may come before a spot notice: nothing, save and go on, or save and
    end the attempt."""
    deadline_seconds: float = Field(30.0, gt=0, le=3600)
    """How long the machine is taken to last after a notice that does not say, such as SIGTERM."""
    poll_seconds: float = Field(1.0, ge=0.1, le=60)
    """Time between two questions to each source of notices."""
