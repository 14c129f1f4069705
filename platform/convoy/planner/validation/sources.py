"""Facts of software and machines that the sources of published runs state and no column of the CSV file has."""

from datetime import date
from typing import Literal, NamedTuple

from convoy.planner.step.work import Kernels
from convoy.planner.workload import Workload


class GpuLimits(NamedTuple):
    """Limits of a GPU that differ from its data sheet; None: they are the data sheet's."""

    watts: float | None = None
    memory_bytes_per_second: float | None = None


class Publication(NamedTuple):
    """Where and when a run was published."""

    date: date
    """Day of the commit that added the run to its page."""
    url: str
    """The page at a commit that has the run."""


_HBM2E_BYTES = 96 * 2.0**30

_LLM_FOUNDRY_PAGE = (
    "https://github.com/mosaicml/llm-foundry/blob/495218376830947dce625efabc4d86be7c47cc45"
    "/scripts/train/benchmarking/README.md"
)

_OTHER_SOFTWARE = ("torchtitan", "fms-fsdp", "megatron", "nemo", "deepspeed", "transformers", "hugging", "convoy")
"""Sources whose runs of a model named MPT are not by the software that MPT is from."""


def kernels_of(source: str, job: Workload, matmul: Literal["bf16", "fp8"]) -> Kernels:
    """Kernels of a run, by its source. A model named `mpt-…` counts as llm-foundry's own, whose attention was a Triton
    kernel, unless its source is other software.

    llm-foundry: runs that reduce in bf16 are of May 2023, the others of October on: the image has torch 1.13 for
    those, which computes blocks again to their end, and 2.1 for these (sweep.sh @300cc5c, @b2a43a1;
    `activation_checkpointing_reentrant: false` in all). Products in fp8 are Transformer Engine's, which hands over
    what backward needs when the product is done. Attention is a Triton kernel, except in four of six models on 128
    H100 and more (sweep.py @5e85bd6).

    All others count as LLaMA in its usual form: a norm in many kernels, a product for each projection, as torchtitan's
    selective recomputation counts them.
    """
    name = job.model.name.lower()
    if not _is_llm_foundry(source, name):
        return Kernels(matmul, fused_norm=False, separate_projections=True)
    large = job.machine.gpu == "H100" and job.ranks >= 128
    flash = large and name.removeprefix("mpt-") in ("1b", "3b", "7b", "70b")
    return Kernels(
        matmul,
        "sdpa" if flash else "triton",
        fused_norm=False,
        stops_early=job.train.reduce_dtype == "fp32" and matmul != "fp8",
    )


def limits_of(source: str, chip: str, memory_bytes: float) -> GpuLimits:
    """Limits in the runs of torchtitan's page of December 2024: H100 with HBM2e of 96 GB and 2.4 TB/s, held to 500 W
    (benchmarks/llama3_h100_202412_torchtitan.md @31a17bf). Its other pages report other machines."""
    name = source.lower()
    page = "llama3_h100_202412" in name or ("torchtitan" in name and memory_bytes == _HBM2E_BYTES)
    return GpuLimits(500.0, 2.4e12) if page and chip == "H100" else GpuLimits()


def publication_of(source: str, job: Workload) -> Publication | None:
    """When and where a run of llm-foundry's page was published; None for other sources.

    The page's history has three additions that are still on it: runs that reduce in bf16 (@300cc5c), those that reduce
    in fp32 (@b2a43a1), and of these the ones on 128 H100 and more (@5e85bd6). Its last change is @4952183.
    """
    if "llm-foundry" not in source.lower():
        return None
    if job.train.reduce_dtype == "bf16":
        added = date(2023, 5, 3)
    elif job.machine.gpu == "H100" and job.ranks >= 128:
        added = date(2024, 1, 6)
    else:
        added = date(2023, 10, 19)
    return Publication(added, _LLM_FOUNDRY_PAGE)


def describe_kernels(source: str, model: str, kernels: Kernels) -> str:
    """What `kernels_of` infers from a source, in words."""
    if not _is_llm_foundry(source, model.lower()):
        return "nothing is known of the software: kernels as most write LLaMA's"
    whose = "llm-foundry" if "llm-foundry" in source.lower() else "llm-foundry, by the model's name"
    attention = "attention by Triton" if kernels.attention == "triton" else "attention by PyTorch"
    recomputed = "" if kernels.stops_early else ", whole blocks where it recomputes"
    return f"{whose}: {attention}{recomputed}"


def describe_limits(limits: GpuLimits) -> list[str]:
    watts, memory = limits
    power = [f"held to {watts:g} W"] if watts else []
    return power + ([f"memory of {memory / 1e12:g} TB/s"] if memory else [])


def _is_llm_foundry(source: str, name: str) -> bool:
    page = source.lower()
    return "llm-foundry" in page or (name.startswith("mpt-") and not any(each in page for each in _OTHER_SOFTWARE))
