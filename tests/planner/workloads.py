"""Workloads to plan in tests."""

from typing import Any

from convoy.catalog.measured_machine import CollectiveTiming, MeasuredMachine
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import RunConfig
from convoy.config.train import TrainConfig
from convoy.planner.step.communication import communication_seconds
from convoy.planner.workload import Machine, Workload, machine_of

GIB = 2**30
P4D = Machine("A100", 8, 40 * GIB, 1152 * GIB, 300e9, 50e9)
P5 = Machine("H100", 8, 80 * GIB, 2048 * GIB, 450e9, 400e9)

GPT_7B: dict[str, Any] = {"n_layers": 32, "d_model": 4096, "n_heads": 32, "vocab_size": 50304, "bias": False}
LLAMA: dict[str, Any] = {
    "norm": "rmsnorm", "positions": "rotary", "mlp": "swiglu", "bias": False, "tied_embeddings": False,
}  # fmt: skip
"""How its blocks and ends differ from the default, GPT's."""
LLAMA_8B = LLAMA | {
    "n_layers": 32, "d_model": 4096, "n_heads": 32, "n_kv_heads": 8, "d_ff": 14336, "vocab_size": 128256,
}  # fmt: skip


def workload(
    nodes: int = 2,
    machine: Machine = P4D,
    model: dict[str, Any] = GPT_7B,
    sequence_length: int = 2048,
    **keys: Any,
) -> Workload:
    """Two sequences for each GPU, in one pass, unless `keys`, of `parallel` and of `train`, say otherwise."""
    parallel = {key: value for key, value in keys.items() if key in ParallelConfig.model_fields}
    train = {"global_batch": 2 * nodes * machine.ranks, "micro_batch": 2, "loss_chunk_tokens": 0, "param_dtype": "bf16"}
    train |= {key: value for key, value in keys.items() if key not in parallel}
    return Workload(
        TransformerConfig.model_validate({"max_sequence_length": sequence_length, **model}),
        sequence_length,
        TrainConfig.model_validate(train),
        ParallelConfig.model_validate(parallel),
        machine,
        nodes,
    )


def workload_of(config: RunConfig) -> Workload:
    """On the machines that it names."""
    assert isinstance(config.model, TransformerConfig)
    length, nodes = config.data.sequence_length, config.cluster.nodes
    return Workload(config.model, length, config.train, config.parallel, machine_of(config), nodes)


def with_more_ranks(job: Workload, machine: MeasuredMachine, alone_seconds: float, optimizer_seconds: float) -> float:
    """Seconds of a step of the job's ranks, from that of one rank alone with as many sequences as each of them has.

    alone_seconds: of its step, beside as many others as there will be, so that what ranks of a host share is shared.
    optimizer_seconds: the part of it that is the update, of which each rank has a share then. Raises ValueError as
    `communication_seconds`.
    """
    return alone_seconds - optimizer_seconds * (1 - 1 / job.shards) + communication_seconds(job, machine).total


HIDDEN = 0.5
"""Share of the shorter of two times that passes during the other: what a rank's own cores take to send, and what its
link takes. A message is cut and copied while others are on their way, but for the first and the last. Measured with
gloo at 1 Gbit/s, where it matters most: 0.35 to 0.6 in four runs."""


def on_link(line: CollectiveTiming, bytes_per_second: float, ranks: int) -> CollectiveTiming:
    """The line of a gather or a reduce-scatter where each of its ranks has a link of its own that carries so much of a
    message each way. line: where nothing limits it: what the ranks' own cores take, of which the link hides a part."""
    carried = bytes_per_second * ranks / (ranks - 1)
    own, sent = 1 / line.bytes_per_second, 1 / carried
    rate = 1 / (own + sent - HIDDEN * min(own, sent))
    return CollectiveTiming(latency_seconds=line.latency_seconds, bytes_per_second=rate, ranks=line.ranks)
