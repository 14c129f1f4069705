"""Small pages in the words of many writers: those whose figures agree, and those in which two of them clash."""

from pathlib import Path

import pytest

from convoy.audit.audit import audit
from convoy.audit.claims import read_claims
from convoy.audit.findings import Audit
from tests.audit.test_audit import of_tree

PAGES = Path(__file__).parent / "pages"

AGREE = sorted((PAGES / "agree").glob("*.yaml"))

CLASH = sorted((PAGES / "clash").glob("*.yaml"))
"""Which finding each of them has, `tests/golden/recorded/audit` holds."""


def audited(path: Path) -> Audit:
    return audit(read_claims(path.read_text(), path.name))


@pytest.mark.parametrize("path", AGREE, ids=lambda path: path.stem)
def test_a_page_whose_figures_agree_has_no_finding(path: Path) -> None:
    found = audited(path)
    assert found.consistent
    assert found.findings == ()


@pytest.mark.parametrize("path", CLASH, ids=lambda path: path.stem)
def test_a_page_with_a_clash_is_not_consistent(path: Path) -> None:
    assert not audited(path).consistent


def test_there_are_many_pages_of_both_kinds() -> None:
    assert len(AGREE) >= 20
    assert len(CLASH) >= 30


def test_a_price_far_from_the_catalog_s_is_unlikely() -> None:
    tree = {"instance": "p5.48xlarge", "market": "spot", "region": "us-east-1"}
    (found,) = of_tree({**tree, "price_per_hour": "$3.90"}).findings
    assert found.kind == "unlikely"
    assert "no such machine was ever as cheap" in found.arithmetic
    assert of_tree({**tree, "price_per_hour": "$3.90 per GPU-hour"}).findings == ()
    assert of_tree({**tree, "price_per_hour": "$31.20"}).findings == ()


def test_a_size_in_the_model_s_name_is_not_told_beside_the_exact_one() -> None:
    tree = {"model": "13B", "parameters": "13.0B", "checkpoints": [{"contents": "weights", "size": "78 GB"}]}
    (found,) = of_tree(tree).findings
    assert found.arithmetic.startswith("13.0B parameters")


@pytest.mark.parametrize(
    ("section", "key", "words"),
    [
        ("checkpoints", "to", ["shared", "NVMe", "Memory"]),
        ("checkpoints", "contents", ["Weights", "training state", "adapters"]),
        ("runs", "strategy", ["FSDP", "ZeRO-2", "zero3", "3D", "HSDP"]),
        ("runs", "precision", ["BF16", "fp8"]),
        ("runs", "market", ["Spot", "capacity block", "On-Demand"]),
        ("runs", "parameters", ["671B total", "1,008 billion", "1558M params"]),
        ("runs", "active_parameters", ["37B activated", "12.9B active parameters"]),
        ("runs", "global_batch", ["2160 sequences", "512"]),
        ("runs", "tflops_per_gpu", ["380 BF16 TFLOPs", "333 (34 % MFU)", "400 model TFLOP/s/GPU"]),
        ("runs", "gpu_hours", ["1,082,990 hours", "180K H800-hours", "2,000 A100-80GB-hours"]),
        ("runs", "gpus", ["992 × A100-80", "4096 A100 40GB", "384 A100 (80GB)"]),
        ("runs", "tokens", ["15T+", "15+ T", "2 trillion"]),
        ("runs", "global_batch", ["4 Mi tokens", "2,048 sequences"]),
        ("runs", "step_time", ["2,830 ms", "2.83 s/step"]),
    ],
)
def test_words_of_pages_are_understood(section: str, key: str, words: list[str]) -> None:
    for each in words:
        assert of_tree({section: [{key: each}]}).consistent


@pytest.mark.parametrize(
    ("page", "consistent"),
    [
        ("instance: c7i.8xlarge\ngpus: 8\nprice_per_hour: $98\n", True),
        ("recovery_rate: 0 to 10 %\nrecovered: 3\ninterruptions: 10\n", False),
    ],
    ids=["machines without GPUs", "a share from nothing on"],
)
def test_machines_without_gpus_and_shares_from_nothing_on_are_judged_too(page: str, consistent: bool) -> None:
    assert audit(read_claims(page, "page.yaml")).consistent is consistent
