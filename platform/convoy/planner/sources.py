"""What published pages tell of their runs beside what a CSV file has columns for: facts of software and of machines."""

from typing import Literal, NamedTuple

from convoy.planner.work import Kernels
from convoy.planner.workload import Workload


class Limits(NamedTuple):
    """Of a GPU, where they are not those of its data sheet; None: they are."""

    watts: float | None = None
    memory_bytes_per_second: float | None = None


def known_kernels(source: str, job: Workload, matmul: Literal["bf16", "fp8"]) -> Kernels:
    """Of a run, by the page that it is from; MPT is llm-foundry's own.

    llm-foundry: cross entropy is flash-attn's kernel (modeling_mpt.py, `fused_crossentropy`), and after each backward
    pass two metrics make it again, with kernels of torch (`use_train_metrics`), so it moves no less. Runs that reduce
    in bf16 are of May 2023, the others of October on: the image has torch 1.13 for those, which computes blocks again
    to their end, and 2.1 for these (sweep.sh @300cc5c, @b2a43a1; `activation_checkpointing_reentrant: false` in all).
    Products in fp8 are Transformer Engine's, which hands over what backward needs when the product is done. Attention
    is a Triton kernel, but in four of six models on 128 H100 and more (sweep.py @5e85bd6).

    Others are taken for LLaMA as most write it: a norm in many kernels, a product for each projection, as torchtitan's
    selective recomputation counts them.
    """
    name = job.model.name.lower()
    if "llm-foundry" not in source.lower() and not name.startswith("mpt-"):
        return Kernels(matmul, fused_norm=False, separate_projections=True)
    large = job.machine.gpu == "H100" and job.ranks >= 128
    flash = large and name.removeprefix("mpt-") in ("1b", "3b", "7b", "70b")
    return Kernels(
        matmul,
        "sdpa" if flash else "triton",
        fused_norm=False,
        fused_loss=True,
        stops_early=job.train.reduce_dtype == "fp32" and matmul != "fp8",
    )


def known_limits(source: str, chip: str) -> Limits:
    """torchtitan: H100 with HBM2e of 2.4 TB/s, held to 500 W (benchmarks/llama3_h100_202412_torchtitan.md @31a17bf)."""
    return Limits(500.0, 2.4e12) if "torchtitan" in source.lower() and chip == "H100" else Limits()
