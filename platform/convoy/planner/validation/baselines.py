"""What a prediction is compared with: predictors that know no physics, only measurements.

Both reckon with hardware FLOPs utilisation (HFU): tokens/s times the operations of a token, recomputation included,
over the GPU's peak.
"""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from convoy.model.counts import parameter_count
from convoy.planner.step.hardware import hardware
from convoy.planner.validation.published import Measured
from convoy.planner.workload import Workload


class Gpu(NamedTuple):
    """A kind of GPU."""

    chip: str
    memory_bytes: float


def constant_hfu(known: Sequence[Measured], job: Workload) -> float | None:
    """Tokens/s of a GPU, with the median HFU of all that is known of this kind of GPU; None: nothing is."""
    alike = _of_its_kind(known, job)
    return _speed(job, statistics.median(map(_hfu, alike))) if alike else None


def nearest(known: Sequence[Measured], job: Workload) -> float | None:
    """Tokens/s of a GPU, with the HFU of the run that is nearest in parameters, sequence length, tokens of a pass and
    GPUs, on the same kind of GPU, and computes all blocks again or does not. A run is not its own neighbour."""
    kind = _of_its_kind(known, job)
    alike = [row for row in kind if _again(row.workload) == _again(job) and row.workload != job]
    if not alike:
        return None
    place = _place(job)
    return _speed(job, _hfu(min(alike, key=lambda row: math.dist(_place(row.workload), place))))


def token_flops(job: Workload) -> float:
    """Of forward and backward, r (6 N + 12 L d S): N all parameters, r = 4/3 where all blocks are computed again."""
    model = job.model
    return _again(job) * (6.0 * parameter_count(model) + 12.0 * model.n_layers * model.d_model * job.sequence_length)


def _of_its_kind(known: Sequence[Measured], job: Workload) -> list[Measured]:
    """Runs on this kind of GPU, or, where none has as much memory, on this chip."""
    chip = [row for row in known if row.workload.machine.gpu == job.machine.gpu]
    return [row for row in chip if _gpu(row.workload) == _gpu(job)] or chip


def _again(job: Workload) -> float:
    return 4 / 3 if job.train.activation_checkpointing == "full" else 1.0


def _hfu(row: Measured) -> float:
    return row.tokens_per_second * token_flops(row.workload) / hardware(row.workload.machine).flops


def _speed(job: Workload, hfu: float) -> float:
    return hfu * hardware(job.machine).flops / token_flops(job)


def _gpu(job: Workload) -> Gpu:
    return Gpu(job.machine.gpu, job.machine.memory_bytes)


def _place(job: Workload) -> tuple[float, ...]:
    counted = (parameter_count(job.model), job.sequence_length, job.tokens_per_pass, job.ranks)
    return tuple(math.log2(value) for value in counted)
