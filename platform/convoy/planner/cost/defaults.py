"""What is assumed of saves and restarts where nobody measured them: each with its day and where it is from.

Measured on two cores without a GPU. A benchmark's checkpoint and recovery suites measure what takes their place.
"""

from datetime import date
from typing import NamedTuple

from convoy.config.benchmark import CampaignConfig


class Assumed(NamedTuple):
    """A figure that stands for a measurement."""

    value: float
    date: date
    source: str


_CHECKPOINT = "benchmarks/results/checkpoint.json, convoy, 2 ranks of 268 MB each"
_DRILLS = "benchmarks/results/drills.json, docs/guides/drills.md"

SAVED_BYTES_PER_STALL_SECOND = Assumed(3.58e9, date(2026, 11, 22), f"{_CHECKPOINT}: extra_window, median of 24")
"""Bytes of one rank, over what a save adds to the steps around it. On a GPU the copy to host memory decides."""

RESTORED_BYTES_PER_SECOND = Assumed(6.48e8, date(2026, 11, 22), f"{_CHECKPOINT}: restore, median of 24")
"""Rate of one rank, from a local disk, with checks."""

RESTART_SECONDS = Assumed(4.73, date(2026, 11, 22), f"{_DRILLS}: node-kill, recovered, median of 30")
"""From an interruption to the first step of the next attempt, of a model whose state takes no time to read. Neither a
machine's start nor that of an image is in it, nor compilation."""

NOTICED_SECONDS = Assumed(1.02, date(2026, 11, 22), f"{_DRILLS}: spot-notice, detected, longest of 30")
"""Until all of a gang know of a notice."""

GPU_FAULT_SECONDS = Assumed(
    54 * 86400 * 16384 / 419, date(2024, 7, 31), "419 unexpected interruptions in 54 days of 16,384 H100: "
    "Llama 3 405B (arXiv 2407.21783, table 5)",
)  # fmt: skip
"""Mean time until something of one GPU, its machine or its job breaks: 5.8 years. Other clusters differ."""

_CAMPAIGN, _CONFIG = CampaignConfig(), "default of recovery.campaign"

REPLACEMENT_SECONDS = Assumed(_CAMPAIGN.replacement_seconds, date(2026, 11, 23), _CONFIG)
"""Until there is another machine in place of one that was taken away."""

ANNOUNCED = Assumed(_CAMPAIGN.announced_share, date(2026, 11, 23), _CONFIG)
"""Share of interruptions that have notice."""

NOTICE_SECONDS = Assumed(_CAMPAIGN.notice_seconds, date(2026, 11, 23), f"{_CONFIG}: EC2's two minutes")
"""From a spot notice until the machine goes."""

BAD_DAY_SECONDS = Assumed(3 * 3600.0, date(2026, 11, 23), f"{_CONFIG}: bad_day_hours")
"""Mean time between interruptions of a gang on a bad day."""
