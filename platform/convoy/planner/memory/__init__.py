"""The one estimate of the memory that a job needs.

`gpu.memory(workload)`: bytes of a rank's GPU at the peak of a step, by part, and whether they fit; without a GPU those
of its part of the host. `gpu.peak(workload)`: the bytes of its tensors alone. `host.host_memory(workload, peak)`: bytes
of a machine's own memory, whose terms `staged_bytes`, `trained_bytes`, `process_bytes` and `task_bytes` stand alone for
checks that have no `Workload`. `gpu.memory_fit(workload)`: both, and on how many machines there is room.
"""
