"""Names of `Case.values` and `Case.samples` that readers of results know, and the medians of samples.

docs/reference/benchmark-results.md says what each of them is, in which unit.
"""

import statistics
from collections.abc import Sequence
from typing import Literal

from convoy.benchmark.results.case import Case, FrozenResult
from convoy.stats.interval import FEWEST, interval

BASELINE, SHARDED_BASELINE = "baseline", "baseline, sharded"
BASELINES = (BASELINE, SHARDED_BASELINE)
"""Names of the cases that most people start from, in the suite throughput."""

WEAK, INDEPENDENT = "weak", "independent"
COMMUNICATION_SECONDS = "communication_seconds"
NETWORK_BYTES = "network_bytes"
LINK_BYTES_PER_SECOND = "link_bytes_per_second"
"""Values of the suite scaling. The case without the first two is the reference of all others."""

FIRST_STEP_SECONDS = "first_step_seconds"
"""Value of all suites whose cases train."""

START_UP_SECONDS, SYNC_SECONDS = "start_up_seconds", "sync_seconds"
"""Samples of cases whose gangs are in environments; the first is also a value of each gang's own case."""

STATE_BYTES = "state_bytes"
LARGEST_MODEL_PARAMETERS = "largest_model_parameters"
LARGEST_MODEL_LAYERS = "largest_model_layers"
RANK_MEMORY_BYTES = "rank_memory_bytes"
RANK_HOST_BYTES = "rank_host_bytes"
"""Values of the suite strategies."""

OF_LARGEST = frozenset({LARGEST_MODEL_PARAMETERS, LARGEST_MODEL_LAYERS, RANK_MEMORY_BYTES, RANK_HOST_BYTES})
"""Computed before anything is measured, and so of cases that are refused too."""

RDMA_CLAIMED = "rdma_claimed"
"""Value of the suite sync."""

SharedPart = Literal["forward", "backward", "optimizer", "communication", "data", "idle"]

SHARES: dict[SharedPart, str] = {
    "forward": "share_forward",
    "backward": "share_backward",
    "optimizer": "share_optimizer",
    "communication": "share_communication",
    "data": "share_data",
    "idle": "share_idle",
}
"""Shares of the step, by part, which add up to 1."""

COMMUNICATION_HIDDEN = "communication_hidden"
USER_CPU_SECONDS, SYSTEM_CPU_SECONDS = "user_cpu_seconds", "system_cpu_seconds"
VOLUNTARY_SWITCHES, INVOLUNTARY_SWITCHES = "voluntary_switches", "involuntary_switches"
CPU_UTILISATION, GPU_UTILISATION = "cpu_utilisation", "gpu_utilisation"
"""Values of the suite utilisation, with `SHARES`."""

OF_UTILISATION = frozenset(
    {
        *SHARES.values(), COMMUNICATION_HIDDEN, USER_CPU_SECONDS, SYSTEM_CPU_SECONDS, VOLUNTARY_SWITCHES,
        INVOLUNTARY_SWITCHES, CPU_UTILISATION, GPU_UTILISATION,
    }
)  # fmt: skip

MEMORY_PARTS = {
    "parameters": "memory_parameters_bytes",
    "optimizer": "memory_optimizer_bytes",
    "gradients": "memory_gradients_bytes",
    "step": "memory_step_bytes",
}
"""What `memory_peak_bytes` is made of, by part: the first three are held between steps."""

MEMORY_HOST_BYTES, MEMORY_FRAGMENTATION = "memory_host_bytes", "memory_fragmentation"

COMPILE_SECONDS = "compile_seconds"
"""Value of the suite frameworks."""

SAVED_BYTES, REST_BYTES = "saved_bytes", "rest_bytes"
FIRST_STALL_SECONDS, FIRST_SAVE_SECONDS = "first_stall_seconds", "first_save_seconds"
PREDICTED_WRITERS = "predicted_writers"
STORAGE_BYTES_PER_SECOND = "storage_bytes_per_second"
SAVE_PUTS, SAVE_GETS = "save_puts", "save_gets"
RESTORE_PUTS, RESTORE_GETS = "restore_puts", "restore_gets"
GZIP_BYTES = "gzip_bytes"
OF_CHECKPOINTS = frozenset(
    {
        SAVED_BYTES, REST_BYTES, FIRST_STALL_SECONDS, FIRST_SAVE_SECONDS, PREDICTED_WRITERS, STORAGE_BYTES_PER_SECOND,
        SAVE_PUTS, SAVE_GETS, RESTORE_PUTS, RESTORE_GETS, GZIP_BYTES,
    }
)  # fmt: skip
"""Values of the suite checkpoint."""

TRIALS, RECOVERED_TRIALS = "trials", "recovered_trials"
STEPS_RECOMPUTED = "steps_recomputed"
SAMPLES_LOST, SAMPLES_REPEATED = "samples_lost", "samples_repeated"
STATES_COMPARED, STATES_EQUAL = "states_compared", "states_equal"
TARGET_DETECTED_SECONDS, TARGET_RECOVERED_SECONDS = "target_detected_seconds", "target_recovered_seconds"
TARGETS = frozenset({TARGET_DETECTED_SECONDS, TARGET_RECOVERED_SECONDS})
OF_RECOVERY = TARGETS | {
    TRIALS, RECOVERED_TRIALS, STEPS_RECOMPUTED, SAMPLES_LOST, SAMPLES_REPEATED, STATES_COMPARED, STATES_EQUAL,
}  # fmt: skip
"""Values of the suite recovery, over all trials."""

STALL, DURABLE, SAVE, RESTORE = "stall_seconds", "durable_seconds", "save_seconds", "restore_seconds"
GZIP_SAVE, GZIP_RESTORE = "gzip_save_seconds", "gzip_restore_seconds"
"""Samples of the suite checkpoint."""

DETECTED, RECOVERED, BEYOND = "detected_seconds", "recovered_seconds", "beyond_seconds"
"""Samples of the suite recovery."""


class SampleMedian(FrozenResult):
    """Independent measurements of one thing."""

    n: int
    median: float
    low: float
    """Lower bound of the median's 95 % interval, where there are enough for one; else the least."""
    high: float
    is_interval: bool


def sample_median(values: Sequence[float]) -> SampleMedian | None:
    """Their median and its bounds; None: there are none."""
    if not values:
        return None
    if len(values) < FEWEST:
        return SampleMedian(
            n=len(values), median=statistics.median(values), low=min(values), high=max(values), is_interval=False
        )
    estimate = interval(values)
    return SampleMedian(n=estimate.n, median=estimate.estimate, low=estimate.low, high=estimate.high, is_interval=True)


def sample_median_of(case: Case, name: str) -> SampleMedian | None:
    """A sample of a case; None: it was not measured."""
    return sample_median(case.samples.get(name, ()))
