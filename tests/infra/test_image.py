"""The image of all tasks has the extras that a configuration may need on any machine."""

import re
import tomllib
from typing import get_args

from convoy.config.trackers import TrackerKind
from tests.infra.terraform import REPOSITORY

OF_TASKS = {"gcs", "notify", "nvml", "prometheus", *get_args(TrackerKind)}
"""Of stores, and of what watches a training."""


def test_the_image_has_the_extras_of_stores_and_watchers() -> None:
    installed = set(re.findall(r"--extra (\S+)", (REPOSITORY / "infra/image/Dockerfile").read_text()))
    known = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert OF_TASKS <= installed <= set(known)
