"""Small pages in the words of many writers: those whose figures agree, and those in which two of them clash."""

from pathlib import Path

import pytest

from convoy.audit.audit import audit
from convoy.audit.claims import read_claims
from convoy.audit.findings import Audit
from tests.audit.test_audit import of_tree

PAGES = Path(__file__).parent / "pages"

AGREE = sorted((PAGES / "agree").glob("*.yaml"))

CLASHES = {
    "a100-80-in-p4d": "not A100-80",
    "bus-bandwidth": "1 GiB / 25 ms = 42.9 GB/s; 42.9 GB/s × 1.969 (of the bus for 64 ranks) = 84.6 GB/s",
    "checkpoint-size": "not 36 GB",
    "collective-beyond-the-network": "66.7 GB/s",
    "compute": "8.4e+23 FLOP",
    "cost-of-gpu-hours": "2.788M GPU-hours = $5,576,000",
    "cost": "7.00 days, not 21 d",
    "cost-per-million": "$203.31 per 1 B tokens",
    "days": "57.9 days",
    "ddp": "112 GB",
    "efficiency": "75 %, not 95% efficiency",
    "eighteen-bytes": "not 160 GB",
    "exploration": "7B parameters × 2 (weights) to 16 bytes (all states) = 84 GB",
    "fsdp-memory": "more than 45 GB",
    "gpu-hours-of-tokens": "2.0T tokens / 172,032 GPU-hours = 3,229 tokens/s/GPU",
    "hfu-below-mfu": "HFU counts recomputation on top",
    "hfu-of-full-recomputation": "35.2 % (33.2 % to 41.3 %), not 45% MFU",
    "hours-for-days": "86.4 days, not 66.4 h",
    "hours-of-a-price": "10.0 h",
    "link-utilisation": "49 GB/s, not 46 GB/s",
    "machines-price-for-a-gpu": "30.0 h, not 10 days",
    "mfu-above-one": "no GPU does more than its peak",
    "mfu-of-throughput": "not 62% MFU",
    "mtbf": "= 3 days",
    "price-of-a-machine": "$8.19/h per node, not $32.77 per node",
    "ranks-of-the-run": "not 189 GB/s",
    "recovered-of-fourteen": "13.7, not 14 interruptions",
    "samples-of-a-step": "512 sequences / 244 = 2.10 s, not 4.2 s",
    "save-beyond-the-network": "links and disks are no faster",
    "save-overhead": "= 5 %",
    "savings": "70.0 % saved",
    "sparse-peak": "not 32% MFU",
    "steps-of-a-time": "143,000 steps × 2.1 s = 3.48 days (3.38 days to 4.11 days), not 7 d",
    "thousands": "7.60 h",
    "throughput-per-gpu": "197,184 tokens/s",
    "tokens-of-steps": "52.4 B tokens, not 105B tokens",
    "zero1-memory": "the states alone take more than that",
}
"""A page of `pages/clash`, and what a finding of it says."""


def audited(path: Path) -> Audit:
    return audit(read_claims(path.read_text(), path.name))


@pytest.mark.parametrize("path", AGREE, ids=lambda path: path.stem)
def test_a_page_whose_figures_agree_has_no_finding(path: Path) -> None:
    found = audited(path)
    assert found.consistent
    assert found.findings == ()


@pytest.mark.parametrize(("name", "words"), CLASHES.items())
def test_a_clash_is_found_and_told_with_its_arithmetic(name: str, words: str) -> None:
    found = audited(PAGES / "clash" / f"{name}.yaml")
    assert not found.consistent
    assert any(words in each.arithmetic for each in found.findings), found.findings


def test_every_page_is_looked_at() -> None:
    assert sorted(CLASHES) == sorted(path.stem for path in (PAGES / "clash").glob("*.yaml"))
    assert len(AGREE) >= 20


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
