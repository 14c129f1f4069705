"""Constants fitted to a benchmark of one's own, and how far what is fitted so can be trusted.

The prior is what others' runs have shown: the shipped constants, each as sure as the physics of it. So what no case
has no data on remains as on others' machines.
"""

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from convoy.benchmark.planner_runs import LeftOutCase, own_runs, typical_machines
from convoy.benchmark.results.case import Case
from convoy.config.json_text import canonical_json
from convoy.config.run import MODEL_UNTIMED, TRAIN
from convoy.planner.step.calibration import Calibration, Constants, Prior, prior
from convoy.planner.step.step_time import calibration_of
from convoy.planner.validation.fit import fit_calibration, percent_errors
from convoy.planner.validation.published import MeasuredRun
from convoy.planner.workload import Workload

SPREAD = {"matmul_efficiency": 0.15, "attention_efficiency": 0.3}
"""Uncertainty for chips, and for PyTorch's fused attention, without a published run: as among those that have one."""

OPERATIONS_SPREAD = 0.5
"""Uncertainty of the small operations of a kernel on a CPU: as of the gap between two kernels on a GPU."""


@dataclass(frozen=True)
class PlannerFit:
    """A calibration, with what it is made of. Errors are of tokens/s, in percent, positive where predicted too fast."""

    calibration: Calibration
    rows: tuple[MeasuredRun, ...]
    left_out: tuple[LeftOutCase, ...]
    before: tuple[float, ...]
    """Errors by the shipped constants."""
    after: tuple[float, ...]
    """Errors by its own constants, which say nothing about other runs."""
    others: tuple[float, ...]
    """Of each row, by constants that were fitted to all rows but those that were configured alike; none where all
    were."""
    trainings: int
    """Number of trainings with different configurations."""


def fit_planner_to(cases: Sequence[Case]) -> PlannerFit:
    """Raises ValueError where no case can be fitted to, for a GPU that the shipped constants do not have, and for
    machines of several devices that the catalog does not have."""
    runs = own_runs(cases)
    if not runs.rows:
        raise ValueError("no case can be fitted to" + _most_common_reason(runs.left_out))
    devices = sorted({each.device for each in runs.machines})
    if len(devices) > 1:  # a plan is made from one
        raise ValueError(f"cases of several devices need a calibration each: {', '.join(devices)}")
    base = shipped_prior_for(runs.rows)
    alike = _rows_by_training(runs.rows)
    calibration = fit_calibration(runs.rows, base)
    data = f"{calibration.data} (results sha256 {_digest(cases)})"
    own = calibration.model_copy(update={"data": data, "machines": typical_machines(runs.machines)})
    return PlannerFit(
        calibration=own,
        rows=runs.rows,
        left_out=runs.left_out,
        before=tuple(percent_errors(runs.rows, base)),
        after=tuple(percent_errors(runs.rows, calibration)),
        others=tuple(leave_one_out_errors(runs.rows, alike, base)),
        trainings=len(alike),
    )


def shipped_prior_for(rows: Sequence[MeasuredRun]) -> Prior:
    """The constants that are shipped for their machines, each as sure as the physics of it. Raises ValueError for
    machines of several kinds."""
    kinds = {row.workload.machine.measured and row.workload.machine.measured.kind for row in rows}
    if len(kinds) > 1:
        raise ValueError("cases of CPUs, of GPUs that the catalog has, and of others need a calibration each")
    physics, shipped = prior(), calibration_of(rows[0].workload)
    sure = {f"{name}.{chip}": SPREAD[name] for name in SPREAD for chip in getattr(shipped.constants, name)}
    sure |= {"operations": OPERATIONS_SPREAD} | physics.spread
    changes = {
        "constants": shipped.constants,
        "stands_for": shipped.stands_for,
        "spread": {name: width for name, width in sure.items() if _has_constant(shipped.constants, name)},
    }
    return physics.model_copy(update=changes)


def _has_constant(constants: Constants, name: str) -> bool:
    """name: as `Prior.spread` has it, with the chip after a point."""
    field, _, chip = name.partition(".")
    return not chip or chip in getattr(constants, field)


def _rows_by_training(rows: Sequence[MeasuredRun]) -> list[list[int]]:
    """Numbers of the rows of each training: the same one is in several suites, whose gangs all measured the machine."""
    alike: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        alike.setdefault(_timing_key(row.workload), []).append(number)
    return [*alike.values()]


def _timing_key(job: Workload) -> str:
    """What the time of a step depends on, whoever measured the machine."""
    model, train = job.model.model_dump(exclude=set(MODEL_UNTIMED)), job.train.model_dump(include=set(TRAIN))
    return repr((model, train, job.sequence_length, job.parallel, replace(job.machine, measured=None), job.nodes))


def leave_one_out_errors(rows: Sequence[MeasuredRun], by_training: Sequence[Sequence[int]], base: Prior) -> list[float]:
    """Errors, in percent, of each training as a fit to the others predicts it, in the order of the rows; none of a
    single one. by_training: numbers of the rows of each."""
    if len(by_training) < 2:
        return []
    errors = [0.0] * len(rows)
    for numbers in by_training:
        others = [row for number, row in enumerate(rows) if number not in numbers]
        wrong = percent_errors([rows[number] for number in numbers], fit_calibration(others, base))
        for number, error in zip(numbers, wrong, strict=True):
            errors[number] = error
    return errors


def _digest(cases: Sequence[Case]) -> str:
    texts = sorted((case.key, case.model_dump(mode="json")) for case in cases)
    return hashlib.sha256(canonical_json([list(each) for each in texts]).encode()).hexdigest()[:12]


def _most_common_reason(left_out: Sequence[LeftOutCase]) -> str:
    """The reason of most."""
    reasons = [each.why for each in left_out]
    return f": {reasons.count(most)} of {len(reasons)}: {most}" if (most := statistics.mode(reasons or [""])) else ""
