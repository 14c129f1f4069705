"""What is known of the constants before any run is measured."""

import functools
from importlib import resources

from convoy.planner.step.calibration import Calibration


class Prior(Calibration):
    """Constants from physics, and how sure it is of each."""

    spread: dict[str, float]
    """Standard deviation of a constant's logarithm, by name; one that is not here is not fitted."""
    sources: dict[str, str]
    """By name."""


@functools.cache
def prior() -> Prior:
    """The table `prior.json`."""
    return Prior.model_validate_json((resources.files(__package__) / "prior.json").read_text())
