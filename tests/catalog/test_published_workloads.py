"""Published rates of training, and the FLOPs that normalise them."""

import re
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
import torch
from torch import nn

from convoy.catalog import load_table
from convoy.catalog.gpus import chip_peak
from convoy.catalog.published_workloads import PublishedWorkload, mfu, published_workloads
from convoy.config.model import CustomModelConfig
from convoy.model.flops import count_task_flops
from tests.catalog import published_models

BOOK = load_table("published_workloads")
WORKLOADS = ("resnet50", "bert-large", "vit-large", "gpt2-xl", "detection")
ROWS = [
    row
    for workload in WORKLOADS
    for gpu in dict.fromkeys(each["gpu"] for each in BOOK["rows"])
    for row in published_workloads(workload, gpu)
]


def _only(workload: str, gpu: str, **wanted: Any) -> PublishedWorkload:
    rows = published_workloads(workload, gpu)
    (found,) = (row for row in rows if all(getattr(row, key) == value for key, value in wanted.items()))
    return found


def test_all_of_the_catalog_are_read_with_a_source_that_names_its_version() -> None:
    assert len(ROWS) == len(BOOK["rows"])
    assert {row.workload for row in ROWS} == set(WORKLOADS)
    assert all(row.date <= date.today() for row in ROWS)
    assert all(re.match(r"https://github\.com/[^/]+/[^/]+/blob/[0-9a-f]{40}/", row.url) for row in ROWS)
    assert set(BOOK["models"]) == {row["model"] for row in BOOK["rows"]}
    assert set(BOOK["sources"]) == {row["source"] for row in BOOK["rows"]}


def test_a_name_that_cuda_reports_finds_the_rows_of_its_chip() -> None:
    assert published_workloads("resnet50", "NVIDIA A100-SXM4-40GB") == published_workloads("resnet50", "A100")
    assert {row.gpu for row in published_workloads("resnet50", "NVIDIA H100 80GB HBM3")} == {"H100 SXM"}


def test_another_chip_and_another_workload_have_none() -> None:
    assert published_workloads("resnet50", "NVIDIA H100 PCIe") == ()
    assert published_workloads("resnet50", "AMD EPYC 7R32") == ()
    assert published_workloads("yolo", "A100") == ()


def test_mfu_is_of_the_peak_in_the_row_s_precision_and_of_all_gpus() -> None:
    resnet = _only("resnet50", "A100", gpus=8, precision="fp16", batch_per_gpu=256)
    assert mfu(resnet) == pytest.approx(16621 * 24.299077632e9 / (8 * 312e12))
    assert mfu(resnet.model_copy(update={"precision": "tf32"})) == pytest.approx(2 * (mfu(resnet) or 0))


def test_there_is_no_mfu_where_flops_or_peak_are_unknown() -> None:
    resnet = _only("resnet50", "A100", gpus=1, precision="fp16")
    assert mfu(resnet.model_copy(update={"flops_per_sample": None})) is None
    assert mfu(resnet.model_copy(update={"precision": "fp8"})) is None  # the A100 has none
    assert [mfu(row) for row in published_workloads("resnet50", "Intel(R) Xeon(R) Platinum 8480+")] == [None]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.workload}-{row.gpu}-{row.gpus}-{row.precision}-{row.date}")
def test_mfu_is_one_that_such_a_training_can_have(row: PublishedWorkload) -> None:
    share = mfu(row)
    assert (share is None) == (row.flops_per_sample is None or chip_peak(row.gpu) is None)
    assert share is None or 0.05 < share < 0.6


def _images() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.empty(2, 3, 224, 224), "labels": torch.zeros(2, dtype=torch.long)}


def _tokens(length: int, predicted: int) -> dict[str, torch.Tensor]:
    return {
        "input_ids": torch.zeros(2, length, dtype=torch.long),
        "labels": torch.zeros(2, predicted, dtype=torch.long),
    }


@pytest.mark.parametrize(
    ("model", "build", "batch"),
    [
        ("resnet50-224", published_models.resnet50, _images()),
        ("vit-large-224", published_models.vit_large, _images()),
        ("bert-large-128", published_models.bert_large, _tokens(128, 20)),
        ("bert-large-512", published_models.bert_large, _tokens(512, 80)),
        ("gpt2-xl-1024", published_models.gpt2_xl, _tokens(1024, 1024)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_flops_and_parameters_are_those_of_the_model(
    model: str, build: Callable[[], nn.Module], batch: dict[str, torch.Tensor]
) -> None:
    config = CustomModelConfig(build=f"{build.__module__}:{build.__name__}", task="module")
    assert count_task_flops(config, batch, rows=2) == BOOK["models"][model]["flops_per_sample"]
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in build().parameters())
    assert parameters == BOOK["models"][model]["parameters"]
