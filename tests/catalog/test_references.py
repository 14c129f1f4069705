"""Published runs carry their day and source, and agree with their own figures."""

import pytest

from convoy.catalog.gpus import gpu_peak
from convoy.catalog.references import Reference, nearest, references

PEAKS = {"A100": "A100-SXM4-80GB", "H100": "H100 80GB HBM3"}


@pytest.mark.parametrize("told", references(), ids=lambda told: f"{told.model} {told.gpus} {told.gpu}")
def test_the_published_mfu_is_that_of_the_published_throughput(told: Reference) -> None:
    """6 N alone is at most what was counted, and attention adds less than half of it."""
    peak = gpu_peak(PEAKS[told.gpu.split()[0]])
    assert peak is not None
    least = told.tokens_per_second_per_gpu * 6 * told.parameters / peak.tflops["bf16"] / 1e12
    assert 0.95 * least < told.mfu < 1.5 * least
    assert told.source
    assert told.date.year >= 2023


def test_the_nearest_in_size_come_first() -> None:
    found = nearest("A100", 7e9)
    assert len(found) == 3
    assert found[0].model == "mpt-7b"


def test_of_other_gpus_and_sizes_there_are_none() -> None:
    assert nearest("MI300X", 7e9) == ()
    assert nearest("A100", 2e12) == ()
