"""The workloads: their sizes in full, their twins, and what the suite makes of them."""

import math

import pytest
import torch

from convoy.benchmark.groups import Group, Ranks
from convoy.benchmark.suites import workloads as suite
from convoy.benchmark.suites.workloads import SUITE, variants_of
from convoy.config.benchmark import resolve_bench
from convoy.config.errors import ConfigError
from convoy.config.functions import import_function
from convoy.config.model import CustomModelConfig
from convoy.config.run import RunConfig
from convoy.model.custom import CustomTask, build_module
from convoy.training.build import model_built_event
from convoy.training.datasets import KeyedSamples, build_dataset
from convoy.workloads import data
from convoy.workloads.models import WORKLOADS, Workload

TWO = Ranks(2, 1)

RUN = RunConfig(root="/runs")

PARAMETERS = {
    "resnet50": 25_557_032,  # as torchvision counts its resnet50
    "bert-large": 335_174_458,  # of the paper's 340 M: with the head of its masked language model, which is tied
    "vit-large": 304_326_632,  # as the authors' ViT-L/16 with 1,000 classes
    "detection": 98_528_352,  # with positions of 512 x 512 pixels
}


def groups(**keys: object) -> dict[str, Group]:
    config = resolve_bench({"suites": ["workloads"], "models": ["tiny"], **keys}, {})
    return {group.name.removeprefix("workloads-"): group for group in SUITE.groups(config, {"tiny": RUN}, TWO)}


def custom(run: RunConfig) -> CustomModelConfig:
    assert isinstance(run.model, CustomModelConfig)
    return run.model


def test_each_workload_has_a_gang_of_all_strategies_and_of_scaling() -> None:
    found = groups()
    assert list(found) == [each.name for each in WORKLOADS]
    for group in found.values():
        assert group.baseline == "ddp"
        assert group.whole
        assert group.run.root == RUN.root
        assert {spec.name for spec in group.variants} == {
            *("ddp", "ddp compiled", "fsdp", "torch DDP", "accelerate FSDP2", "DeepSpeed ZeRO-2"),
            *("1 rank", "2 jobs of 1 rank", "2 ranks, strong"),
        }
        batches = {spec.name: spec.config(group.run).train.global_batch for spec in group.variants}
        assert batches["ddp"] == 2 * batches["1 rank"]
        assert batches["2 ranks, strong"] == batches["2 jobs of 1 rank"] == batches["1 rank"]


def test_one_sample_of_a_rank_cannot_be_shared() -> None:
    assert "2 ranks, strong" not in [spec.name for spec in variants_of(1, 2)]


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_model_in_full_has_the_parameters_that_its_authors_count(name: str) -> None:
    group = groups(workloads={"names": [name], "size": "full"})[name]
    with torch.device("meta"):
        module = build_module(custom(group.run), 0, values=False)
    assert sum(p.numel() for p in module.parameters()) == PARAMETERS[name]


def test_gpt2_xl_in_full_has_12_of_its_layers_in_full_width_and_says_so() -> None:
    run = groups(workloads={"names": ["gpt2-xl"], "size": "full"})["gpt2-xl"].run
    assert run.model.name == "gpt2-xl, 12 of 48 layers"
    assert (run.model.n_layers, run.model.d_model, run.model.n_heads) == (12, 1600, 25)  # type: ignore[union-attr]
    assert run.data.sequence_length == 1024


@pytest.mark.parametrize("chosen", [each for each in WORKLOADS if each.module], ids=lambda each: each.name)
def test_a_small_twin_learns_from_its_data(chosen: Workload) -> None:
    run = groups(workloads={"names": [chosen.name]})[chosen.name].run
    task = CustomTask(custom(run), build_module(custom(run), 0))
    train = build_dataset(run, "train")
    assert train is not None
    collate = torch.utils.data.default_collate
    if run.data.collate is not None:
        collate = import_function("data.collate", run.data.collate)
    batch = collate(KeyedSamples(train, 0).__getitems__([(0, i) for i in range(8)]))
    optimizer = torch.optim.AdamW(task.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        loss = task(batch, 8)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]
    built = model_built_event(run, 0, 0, (batch, 8))
    assert built.unit == chosen.unit
    # The loss of a detector matches boxes by their values, which the meta device does not have.
    assert (built.flops_per_token is None) == (chosen.name == "detection")


@pytest.mark.parametrize("split", ["train", "validation"])
def test_digits_are_split_without_overlap(split: str) -> None:
    sizes = {name: len(data.Digits(name, 16)) for name in ("train", "validation")}
    assert sizes == {"train": 1617, "validation": 180}
    sample = data.Digits(split, 16)[3]
    assert sample["pixel_values"].shape == (3, 16, 16)
    assert -1 <= float(sample["pixel_values"].min()) < float(sample["pixel_values"].max()) <= 1


def test_boxes_lie_around_their_digits() -> None:
    scene = data.DigitScenes("train", 64)[5]
    covered = torch.zeros(64, 64, dtype=torch.bool)
    for x, y, width, height in (64 * scene["labels"]["boxes"]).tolist():
        covered[round(y - height / 2) : round(y + height / 2), round(x - width / 2) : round(x + width / 2)] = True
    ink = scene["pixel_values"][0] > -1
    assert ink.any()
    assert not (ink & ~covered).any()


def test_masked_tokens_alone_have_a_label() -> None:
    for dataset in (data.MaskedIds(64, 100), data.MaskedSource("train", 64)):
        sample = dataset[0]
        hidden = sample["labels"] != -100
        assert hidden.any()
        assert not hidden.all()
        assert len(sample["input_ids"][hidden].unique()) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("yolov8", "workloads.names.0 = yolov8: ultralytics' YOLO is licensed under the AGPL"),
        ("resnet", "workloads.names.0 = resnet: must be one of resnet50, bert-large, .*did you mean resnet50"),
    ],
)
def test_a_workload_that_is_not_there_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        groups(workloads={"names": [name]})


def test_cases_are_refused_where_the_packages_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "find_spec", lambda name: None if name == "sklearn" else name)
    group = groups(workloads={"names": ["detection"]})["detection"]
    assert {each.reason for each in group.refused} == {
        "sklearn is not installed: pip install 'metaflow-convoy[workloads]'"
    }
    assert len(group.refused) == 9
