"""Names of `Case.values` and `Case.samples` that readers of results know, and the medians of samples.

docs/reference/benchmark-results.md has them all, with their units.
"""

import statistics
from collections.abc import Sequence
from typing import Literal

from convoy.benchmark.results.case import Case, Fact
from convoy.stats.interval import FEWEST, interval

WEAK = "weak"
"""Suite scaling. 1: the work grows with the ranks, tokens per rank stay; 0: strong, all ranks share the work of the
fewest. The case without it and without `independent` is the reference of both: of one rank, or as few as have room."""

INDEPENDENT = "independent"
"""Suite scaling. 1: as many jobs of the reference's size as its ranks make, at the same time, none of which talks to
another:
what they lose beside one alone is memory bandwidth, caches and clock rate, and not communication."""

COMMUNICATION_SECONDS = "communication_seconds"
"""Suite scaling. Of a step of all ranks: what it takes longer than the same work with nobody to wait for
(`benchmark/results/figures.py`, `exposed_seconds`)."""

NETWORK_BYTES = "network_bytes"
"""Suite scaling. Sent by one rank in a step."""

LINK_BYTES_PER_SECOND = "link_bytes_per_second"
"""Suite scaling. What a rank's link carried in a measurement of nothing else: bus bandwidth of large all-gathers."""

STATE_BYTES = "state_bytes"
"""Suite strategies. Weights and optimizer state that rank 0 holds between two steps; no gradients, no buffers."""

LARGEST_MODEL_PARAMETERS = "largest_model_parameters"
"""Suite strategies. Computed, not measured: of the same model with as many layers as have room, by the arithmetic by
which cases are refused (`benchmark/memory_estimate.py`), for the two memories below."""

LARGEST_MODEL_LAYERS = "largest_model_layers"
"""Suite strategies. Of that model."""

RANK_MEMORY_BYTES = "rank_memory_bytes"
"""Suite strategies. That a rank is taken to have: its GPU's, or its share of its host's."""

RANK_HOST_BYTES = "rank_host_bytes"
"""Suite strategies. On GPUs: a rank's share of its host's memory."""

OF_LARGEST = frozenset({LARGEST_MODEL_PARAMETERS, LARGEST_MODEL_LAYERS, RANK_MEMORY_BYTES, RANK_HOST_BYTES})
"""Known before anything is measured, and so of cases that are refused too."""

RDMA_CLAIMED = "rdma_claimed"
"""Suite sync. 1: the environment was said to have RDMA, and the one that it is compared with has none."""
SharedPart = Literal["forward", "backward", "optimizer", "communication", "data", "idle"]

SHARES: dict[SharedPart, str] = {
    "forward": "share_forward",
    "backward": "share_backward",
    "optimizer": "share_optimizer",
    "communication": "share_communication",
    "data": "share_data",
    "idle": "share_idle",
}
"""Suite utilisation. Of the step, by part: together 1, the mean over ranks."""

COMMUNICATION_HIDDEN = "communication_hidden"
"""Suite utilisation. Share of the step in which something computed while a collective was under way."""

USER_CPU_SECONDS = "user_cpu_seconds"
SYSTEM_CPU_SECONDS = "system_cpu_seconds"
"""Suite utilisation. Of a step, in a rank's process: the mean over ranks, as of the two below."""

VOLUNTARY_SWITCHES = "voluntary_switches"
"""Suite utilisation. How often a thread of a rank gave its core away in a step, since it waited for something."""

INVOLUNTARY_SWITCHES = "involuntary_switches"
"""Suite utilisation. How often one lost its core in a step."""

CPU_UTILISATION = "cpu_utilisation"
"""Suite utilisation. CPU time of all ranks over wall time times the cores of their hosts."""

GPU_UTILISATION = "gpu_utilisation"
"""Suite utilisation. Share of the time in which a GPU had a kernel to run, as its driver tells; mean over GPUs."""

MEMORY_PARTS = {
    "parameters": "memory_parameters_bytes",
    "optimizer": "memory_optimizer_bytes",
    "gradients": "memory_gradients_bytes",
    "step": "memory_step_bytes",
}
"""Every suite. What `memory_peak_bytes` is made of, by part: weights, optimizer state and gradients that a rank holds
between steps, and what a step takes on top at its peak."""

MEMORY_HOST_BYTES = "memory_host_bytes"
"""Every suite. What a rank on a GPU holds in host memory of weights, gradients and optimizer state."""

MEMORY_FRAGMENTATION = "memory_fragmentation"
"""Every suite, on a GPU. Of what the allocator took from it for a step, the share that no tensor used at the peak."""
SAVED_BYTES = "saved_bytes"
"""Suite checkpoint, as the next five. What all ranks together save."""

FIRST_STALL_SECONDS = "first_stall_seconds"
"""As `stall_seconds`, of the first save, which starts what writes."""

FIRST_SAVE_SECONDS = "first_save_seconds"
"""As `save_seconds`, of the first save, which starts what writes."""

REST_BYTES = "rest_bytes"
"""Bytes that all ranks save while nothing else runs: the state, filled up so that rates mean something."""

PREDICTED_WRITERS = "predicted_writers"
"""Ranks of the job whose saves and loads are predicted."""

STORAGE_BYTES_PER_SECOND = "storage_bytes_per_second"
"""Rate of that job's storage for all of them together, as it was bought."""

TRIALS = "trials"
"""Suite recovery, as the following ones. That were run."""

RECOVERED_TRIALS = "recovered_trials"
"""Trials that recovered with nothing lost, nothing repeated and nothing left behind."""

STEPS_RECOMPUTED = "steps_recomputed"
"""Sum over all trials, as the next four."""

SAMPLES_LOST = "samples_lost"

SAMPLES_REPEATED = "samples_repeated"

STATES_COMPARED = "states_compared"
"""Final states that were compared with an undisturbed training's."""

STATES_EQUAL = "states_equal"
"""Those that are the same bit for bit."""

TARGET_DETECTED_SECONDS = "target_detected_seconds"
"""Limit of the median."""

TARGET_RECOVERED_SECONDS = "target_recovered_seconds"

OF_CHECKPOINTS = frozenset(
    {SAVED_BYTES, REST_BYTES, FIRST_STALL_SECONDS, FIRST_SAVE_SECONDS, PREDICTED_WRITERS, STORAGE_BYTES_PER_SECOND}
)
OF_RECOVERY = frozenset(
    {
        TRIALS, RECOVERED_TRIALS, STEPS_RECOMPUTED, SAMPLES_LOST, SAMPLES_REPEATED, STATES_COMPARED, STATES_EQUAL,
        TARGET_DETECTED_SECONDS, TARGET_RECOVERED_SECONDS,
    }
)  # fmt: skip


STALL = "stall_seconds"
"""Suite checkpoint, as the next three. For which training waits for one save: the call that begins it, and the update
that waits for the copy; the slowest rank's. Without the first save, which starts what writes."""

DURABLE = "durable_seconds"
"""From the beginning of a save to its commit, written beside steps at the configured pace."""

SAVE = "save_seconds"
"""The same with nothing else going on, as fast as the storage takes it, of `rest_bytes`."""

RESTORE = "restore_seconds"
"""Until all ranks have that back, read from the storage and checked."""

DETECTED = "detected_seconds"
"""Suite recovery, as the next two. From the fault until the gang knows of it."""

RECOVERED = "recovered_seconds"
"""From the fault until the first step of the gang that replaces the stopped one."""

BEYOND = "beyond_seconds"
"""From the fault until the first step that was not done before."""


class SampleMedian(Fact):
    """Independent measurements of one thing."""

    n: int
    median: float
    low: float
    """Lower bound of the median's 95 % interval, where there are enough for one; else the least."""
    high: float
    is_interval: bool


def sample(values: Sequence[float]) -> SampleMedian | None:
    """Their median and its bounds; None: there are none."""
    if not values:
        return None
    if len(values) < FEWEST:
        return SampleMedian(
            n=len(values), median=statistics.median(values), low=min(values), high=max(values), is_interval=False
        )
    estimate = interval(values)
    return SampleMedian(n=estimate.n, median=estimate.estimate, low=estimate.low, high=estimate.high, is_interval=True)


def sample_of(case: Case, name: str) -> SampleMedian | None:
    """A sample of a case; None: it was not measured."""
    return sample(case.samples.get(name, ()))
