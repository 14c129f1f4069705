"""Published throughput of trainings, each with its date and source, to hold own measurements against."""

from datetime import date
from typing import Any, Literal

from pydantic import Field

from convoy.catalog import load_table
from convoy.catalog.gpus import GpuPeak, chip_peak, gpu_peak
from convoy.config.base import FrozenConfig

WorkloadName = Literal["resnet50", "bert-large", "vit-large", "gpt2-xl", "detection"]
Precision = Literal["bf16", "fp16", "tf32", "fp32", "fp8"]
"""Lowest type of the operands of matrix products; what else is in fp32 differs from source to source."""


class PublishedWorkload(FrozenConfig):
    """One published rate of training."""

    workload: WorkloadName
    model: str
    """Name and variant of what was trained."""
    gpu: str
    """Chip as the catalog's GPUs name it; for CPUs the model's name as Linux prints it."""
    gpus: int = Field(ge=1)
    """GPUs together; for CPUs their sockets."""
    framework: str
    """With its version, or that of the container, as far as the source names it."""
    precision: Precision
    batch_per_gpu: int = Field(ge=1)
    """Samples in one GPU's micro batch."""
    image_size: int | None
    """Pixels of each side."""
    sequence_length: int | None
    """Tokens; the most, where `model` says so."""
    samples_per_second: float = Field(gt=0)
    """Of all GPUs together."""
    figure: str
    """How `samples_per_second` follows from what the source prints."""
    what: str
    """Real or synthetic data, and what the rate covers."""
    parameters: int | None
    flops_per_sample: float | None
    """Forward and backward, without recomputation; None: not known, as for sequences of unknown lengths."""
    date: date
    """Day on which the source's version was committed."""
    source: str
    """Title of the page."""
    url: str


def published_workloads(workload: str, gpu: str) -> tuple[PublishedWorkload, ...]:
    """Published rows of a workload on the same chip, in the catalog's order; none where the catalog has none.

    gpu: a name that CUDA reports, a chip of the catalog, or a CPU's model name.
    """
    book = load_table("published_workloads")
    chip = _chip(gpu)
    return tuple(
        _row(row, book) for row in book["rows"] if row["workload"] == workload and row["gpu"].casefold() == chip
    )


def mfu(row: PublishedWorkload) -> float | None:
    """Share of the chips' dense peak in the row's precision; None where the peak or the FLOPs are not known."""
    peak = chip_peak(row.gpu)
    tflops = None if peak is None else _peak_tflops(peak, row.precision)
    if tflops is None or row.flops_per_sample is None:
        return None
    return row.samples_per_second * row.flops_per_sample / (row.gpus * tflops * 1e12)


def _peak_tflops(peak: GpuPeak, precision: Precision) -> float | None:
    # Tensor cores have one peak for both 16-bit types: data sheets of the A100 and H100, "FP16 or BFLOAT16".
    return peak.tflops.get("bf16" if precision == "fp16" else precision)


def _chip(gpu: str) -> str:
    peak = gpu_peak(gpu) or chip_peak(gpu)
    return (gpu if peak is None else peak.chip).strip().casefold()


def _row(row: dict[str, Any], book: dict[str, Any]) -> PublishedWorkload:
    source, model = book["sources"][row["source"]], book["models"][row["model"]]
    return PublishedWorkload(
        **{
            **row,
            **{key: value for key, value in model.items() if key != "title"},
            "model": model["title"],
            "source": source["title"],
            "url": source["url"],
            "date": date.fromisoformat(source["date"]),
        }
    )
