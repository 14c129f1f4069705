"""Many measurements at once: the formulas of a step over arrays of counts."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np

from convoy.planner.step.calibration import Calibration, Constants, chip_of
from convoy.planner.step.step_time import Counted, count, parts
from convoy.planner.step.work import Kernels
from convoy.planner.validation.published import Measured


@dataclass(frozen=True)
class Batch:
    """Measurements that share their efficiencies."""

    indices: tuple[int, ...]
    """In the order that was given."""
    chip: str
    kernels: Kernels
    counted: Counted
    """Arrays."""
    log_speed: Any
    """Natural logarithms of the measured tokens/s."""

    def misses(self, constants: Constants) -> Any:
        """Natural logarithms of predicted over measured tokens/s."""
        time = parts(self.counted, constants, self.chip, self.kernels)
        return np.log(self.counted.tokens / time.total) - self.log_speed


def batches(measured: Sequence[Measured], calibration: Calibration) -> list[Batch]:
    """Raises ValueError where a GPU is not in the catalog or the calibration."""
    alike: dict[tuple[str, Kernels], list[int]] = {}
    for index, row in enumerate(measured):
        machine = row.workload.machine
        chip = chip_of(calibration, machine.measured.kind if machine.measured else machine.gpu)
        alike.setdefault((chip, row.kernels), []).append(index)
    return [
        Batch(
            indices=tuple(indices),
            chip=chip,
            kernels=kernels,
            counted=_stacked([count(measured[index].workload, kernels, measured[index].machine) for index in indices]),
            log_speed=np.log([measured[index].tokens_per_second for index in indices]),
        )
        for (chip, kernels), indices in alike.items()
    ]


def percent_errors(measured: Sequence[Measured], calibration: Calibration) -> list[float]:
    """Of the predicted tokens/s, in percent of the measured, in order; positive: too fast."""
    wrong = np.empty(len(measured))
    for batch in batches(measured, calibration):
        wrong[list(batch.indices)] = 100 * np.expm1(batch.misses(calibration.constants))
    return [float(error) for error in wrong]


def _stacked(values: Sequence[Any]) -> Any:
    """Dataclasses of numbers, as one of arrays."""
    first = values[0]
    if is_dataclass(first):
        told = {field.name: _stacked([getattr(value, field.name) for value in values]) for field in fields(first)}
        return first.__class__(**told)
    return first if isinstance(first, str) else np.array(values, dtype=float)
