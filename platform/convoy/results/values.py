"""Names of `Case.values` that readers of results know; docs/benchmarks.md has them with their units."""

WEAK = "weak"
"""Suite scaling. 1: the work grows with the ranks, tokens per rank stay; 0: strong, all ranks share the work of one. A
case of one rank without it is the reference of both."""

INDEPENDENT = "independent"
"""Suite scaling. 1: as many jobs of one rank as the case has ranks, at the same time, none of which talks to another:
what they lose beside one alone is memory bandwidth, caches and clock rate, and not communication."""

COMMUNICATION_SECONDS = "communication_seconds"
"""Suite scaling. Part of a step in which a rank only waits for communication: what computation does not hide."""

NETWORK_BYTES = "network_bytes"
"""Suite scaling. Sent by one rank in a step."""

LINK_BYTES_PER_SECOND = "link_bytes_per_second"
"""Suite scaling. What a rank's link carried in a measurement of nothing else."""

LARGEST_MODEL_PARAMETERS = "largest_model_parameters"
"""Suite strategies. Of the largest model that fits."""

STATE_BYTES = "state_bytes"
"""Suite checkpoint, as the next five. What all ranks together save."""

FIRST_STALL_SECONDS = "first_stall_seconds"
"""As `stall_seconds`, of the first save, which starts what writes."""

FIRST_SAVE_SECONDS = "first_save_seconds"
"""As `save_seconds`, of the first save, which starts what writes."""

REST_BYTES = "rest_bytes"
"""What all ranks together save where nothing else goes on: the state, filled up to what rates can be told of."""

PREDICTED_WRITERS = "predicted_writers"
"""Ranks of the job whose saves and loads are predicted."""

STORAGE_BYTES_PER_SECOND = "storage_bytes_per_second"
"""What that job's storage gives all of them together: what was bought."""

TRIALS = "trials"
"""Suite recovery, as the following ones. That were run."""

RECOVERED_TRIALS = "recovered_trials"
"""That went on as they should, with nothing lost, nothing repeated and nothing left behind."""

STEPS_RECOMPUTED = "steps_recomputed"
"""Of all trials together, as the next four."""

SAMPLES_LOST = "samples_lost"

SAMPLES_REPEATED = "samples_repeated"

STATES_COMPARED = "states_compared"
"""Final states that were compared with an undisturbed training's."""

STATES_EQUAL = "states_equal"
"""Of those, that are the same bit for bit."""

TARGET_DETECTED_SECONDS = "target_detected_seconds"
"""What the median is to keep to."""

TARGET_RECOVERED_SECONDS = "target_recovered_seconds"

OF_CHECKPOINTS = frozenset(
    {STATE_BYTES, REST_BYTES, FIRST_STALL_SECONDS, FIRST_SAVE_SECONDS, PREDICTED_WRITERS, STORAGE_BYTES_PER_SECOND}
)
OF_RECOVERY = frozenset(
    {
        TRIALS, RECOVERED_TRIALS, STEPS_RECOMPUTED, SAMPLES_LOST, SAMPLES_REPEATED, STATES_COMPARED, STATES_EQUAL,
        TARGET_DETECTED_SECONDS, TARGET_RECOVERED_SECONDS,
    }
)  # fmt: skip
