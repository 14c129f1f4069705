"""The one estimate of the memory that a job needs.

`rank.rank_memory`: bytes of a rank at the peak of a step, by part, and whether they fit: of its GPU, or without one of
its part of the host. `rank.peak_bytes_by_part`: the bytes of its tensors alone. `host.host_memory`: bytes of a
machine's own memory, whose terms `staged_bytes`, `training_state_bytes`, `process_bytes` and `usable_bytes`
stand alone for checks that have no `Workload`. `rank.memory_fit`: both, and on how many machines there is
room.
"""
