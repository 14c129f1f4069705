"""A short name of a measured run, by which a calibration tells which runs it has seen."""

import hashlib
import json

from convoy.planner.validation.published import Measured


def digest(row: Measured) -> str:
    """Of what was run, on what, and how fast it was; not of names, nor of what is made of it."""
    job = row.workload
    train = job.train.model_dump(include={"global_batch", "micro_batch", "activation_checkpointing", "compile"})
    told = {
        "model": job.model.model_dump(mode="json", exclude={"name"}),
        "train": train | {"reduced": job.train.reduce_dtype, "operands": row.kernels.matmul},
        "parallel": job.parallel.model_dump(mode="json"),
        "machine": [job.machine.gpu, job.machine.memory_bytes, job.machine.ranks, job.machine.network_bytes_per_second],
        "rest": [job.sequence_length, job.nodes, row.tokens_per_second],
    }
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]
