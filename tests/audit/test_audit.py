"""Pages whose figures agree have no finding, and of one wrong figure all findings are about it."""

import json
from pathlib import Path
from typing import Any

import pytest

from convoy.audit.audit import audit
from convoy.audit.claims import read_claims
from convoy.audit.findings import Audit
from convoy.config.yaml_text import parse_yaml_as_text

PAGES = Path(__file__).parent / "pages"


def audited(name: str) -> Audit:
    return audit(read_claims((PAGES / name).read_text(), name))


def of_tree(tree: dict[str, Any]) -> Audit:
    return audit(read_claims(json.dumps(tree), "test"))


def changed(path: str, value: str, page: str = "consistent.yaml") -> Audit:
    """A consistent page with one claim changed: `runs.0.time`."""
    tree = parse_yaml_as_text((PAGES / page).read_text())
    *above, key = path.split(".")
    inside: Any = tree
    for part in above:
        inside = inside[int(part) if part.isdigit() else part]
    inside[key] = value
    return of_tree(tree)


def test_every_contradiction_of_the_accepted_page_is_found() -> None:
    found = audited("acceptance.yaml")
    assert not found.consistent
    lines = [(each.kind, each.arithmetic) for each in found.findings]

    def told(kind: str, *words: str) -> None:
        assert [line for line in lines if line[0] == kind and all(word in line[1] for word in words)], words

    told("contradiction", "1 T tokens / 145,267 tokens/s = 79.7 days, not 57 h")
    told("contradiction", "$21.96/h per p4d.24xlarge (2026-11-09) × 4 nodes", "not $0.89 per 1 B tokens")
    told("impossible", "380 GB/s, more than 400 Gbit/s = 50 GB/s of a p4d.24xlarge")
    told("contradiction", "1 GB / 42,156.7 µs = 23.7 GB/s; ", "1.75 (of the bus for 8 ranks) or 1.969",
         "not 189.6 GB/s")  # fmt: skip
    told("contradiction", "145,267 tokens/s and 133,892 tokens/s for the same run on 32 GPUs")
    told("impossible", "1 T tokens / 57 h", "2,050 %", "no GPU does more than its peak")
    told("impossible", "189.6 GB/s, more than 56.2 GB/s between 8 nodes")
    assert len(lines) == 7


def test_a_consistent_page_has_no_finding_and_all_of_it_is_checked() -> None:
    found = audited("consistent.yaml")
    assert found.consistent
    assert (found.findings, found.not_checked) == ((), ())


@pytest.mark.parametrize("page", ["blog.yaml", "readme.yaml", "spot.yaml"])
def test_rounded_figures_in_the_words_of_a_page_have_no_finding(page: str) -> None:
    found = audited(page)
    assert (found.findings, found.not_checked) == ((), ())


@pytest.mark.parametrize(
    ("page", "path", "value", "words"),
    [
        ("blog.yaml", "mfu", "104 %", "no GPU does more than its peak"),
        ("blog.yaml", "cost", "$14.7k", "$14.7k / 300 billion tokens"),
        ("blog.yaml", "steps", "286k", "286k steps × 2M tokens = 572 B tokens, not 300 billion tokens"),
        ("blog.yaml", "checkpoints.0.bandwidth", "28 GB/s", "156 GB / 45 seconds = 3.47 GB/s, not 28 GB/s"),
        ("blog.yaml", "checkpoints.0.size", "2.44 GB per rank", ""),
        ("blog.yaml", "checkpoints.0.size", "24.4 GB per rank", "= 1.56 TB"),
        ("readme.yaml", "runs.1.scaling_efficiency", "89%", "5.8k tok/s/GPU / 6,050 tok/s/GPU = 95.9 %"),
        ("readme.yaml", "links.0.bandwidth", "3200 GB/s", "more than 3200 Gbit/s = 400 GB/s"),
        ("spot.yaml", "checkpoints.0.size", "14 GB", "7B parameters × 6 to 16 bytes of weights and optimizer"),
        ("spot.yaml", "strategy", "DDP", "do not fit in a GPU"),
    ],
)
def test_a_wrong_figure_among_many_is_told_in_few_lines(page: str, path: str, value: str, words: str) -> None:
    found = changed(path, value, page)
    assert found.consistent == (not words)
    assert len(found.findings) <= 4
    assert any(words in each.arithmetic for each in found.findings) or not words


def test_every_figure_of_a_list_is_held_against_the_others() -> None:
    page = {"model": "7B", "gpus": "8 × A100-40", "layers": ["32", "48"], "width": "4096", "mfu": "50 %"}
    found = of_tree({**page, "throughput_per_gpu": ["3,700 tokens/s", "9,000 tokens/s"]})
    told = [claim for each in found.findings for claim in each.claims]
    assert "page.throughput_per_gpu[2] = 9,000 tokens/s" in told


@pytest.mark.parametrize(
    ("mfu", "hfu", "agree"), [("47 %", "64 %", True), ("48 %", "58.6 %", True), ("40 %", "66 %", False)]
)
def test_full_recomputation_may_be_counted_or_taken_for_a_third(mfu: str, hfu: str, agree: bool) -> None:
    """What fms-fsdp's page counts; what torch's counter finds of GPT, whose last products are not made again."""
    assert of_tree({"recomputation": "full", "mfu": mfu, "hfu": hfu}).consistent == agree


def test_what_runs_share_is_told_once() -> None:
    runs = [{"throughput": "100k tokens/s"}, {"throughput": "50k tokens/s", "variant": "other"}]
    found = of_tree({"gpus": "32 × H100", "instance": "p4d", "runs": runs})
    (only,) = found.findings
    assert only.claims == ("page.gpu = H100", "page.instance = p4d")


WRONG: list[tuple[str, str, str, str]] = [
    ("model", "70B", "contradiction", "parameters"),
    ("gpu", "H100", "contradiction", "a p4d.24xlarge has 8 A100 of 40 GiB, not H100"),
    ("gpu", "A100-80", "contradiction", "a p4d.24xlarge has 8 A100 of 40 GiB, not A100-80"),
    ("gpus_per_node", "4", "contradiction", "8 GPUs"),
    ("price_per_hour", "$2.74/h", "contradiction", "not"),
    ("strategy", "ddp", "impossible", "do not fit"),
    ("runs.0.gpus", "40", "contradiction", "40 GPUs"),
    ("runs.0.throughput", "145,267 tokens/s", "contradiction", "145,267"),
    ("runs.0.throughput_per_gpu", "119,200 tokens/s/GPU", "contradiction", "32 GPUs"),
    ("runs.0.mfu", "45 %", "contradiction", "not 45 %"),
    ("runs.0.mfu", "103 %", "impossible", "no GPU does more"),
    ("runs.0.hfu", "50 %", "contradiction", "50 %"),
    ("runs.0.tflops_per_gpu", "300", "contradiction", "300"),
    ("runs.0.global_batch", "512", "contradiction", "512"),
    ("runs.0.micro_batch", "16", "contradiction", "16"),
    ("runs.0.step_time", "8.1 s", "contradiction", "8.1 s"),
    ("runs.0.steps", "750,000", "contradiction", "750,000"),
    ("runs.0.time", "57 h", "contradiction", "57 h"),
    ("runs.0.gpu_hours", "68,000", "contradiction", "68,000"),
    ("runs.0.cost", "$140,000", "contradiction", "$140,000"),
    ("runs.0.cost_per_tokens", "$0.89 per 1B tokens", "contradiction", "$0.89"),
    ("runs.0.memory_per_gpu", "2.5 GB", "contradiction", "the states alone"),
    ("runs.0.memory_per_gpu", "46 GB", "impossible", "no more memory"),
    ("runs.0.speedup", "3.5x", "contradiction", "3.5x"),
    ("runs.0.scaling_efficiency", "91 %", "contradiction", "not 91 %"),
    ("runs.1.throughput", "27,000 tokens/s", "contradiction", "27,000"),
    ("runs.1.mfu", "72 %", "contradiction", "72 %"),
    ("runs.2.savings", "65 %", "contradiction", "65 %"),
    ("runs.2.spot_price", "$22.50", "contradiction", "$22.50"),
    ("runs.2.recovery_rate", "92 %", "contradiction", "92 %"),
    ("runs.2.recovered", "41", "impossible", "than there were"),
    ("runs.2.goodput", "99.99 %", "contradiction", "recoveries alone"),
    ("links.0.bandwidth", "380 GB/s", "impossible", "more than 400 Gbit/s"),
    ("links.0.utilisation", "80 %", "contradiction", "40 GB/s"),
    ("links.1.bandwidth", "700 GB/s", "impossible", "NVLink"),
    ("collectives.0.time", "22,000 us", "contradiction", "45.5 GB/s"),
    ("collectives.0.bus_bandwidth", "39 GB/s", "contradiction", "39 GB/s"),
    ("collectives.0.algorithm_bandwidth", "44.0 GB/s", "contradiction", "44.0 GB/s"),
    ("collectives.1.time", "0.2 ms", "contradiction", "224 GB/s"),
    ("checkpoints.0.size", "13 GB", "contradiction", "13 GB"),
    ("checkpoints.0.size", "640 GB", "contradiction", "640 GB"),
    ("checkpoints.0.save_time", "0.2 s", "contradiction", "0.2 s"),
    ("checkpoints.0.load_time", "0.2 s", "impossible", "links and disks"),
    ("checkpoints.0.bandwidth", "250 GB/s", "impossible", "links and disks"),
    ("checkpoints.0.overhead", "2 %", "contradiction", "2 %"),
    ("checkpoints.0.interval", "10 s", "contradiction", "10 s"),
]


@pytest.mark.sampled(4)
@pytest.mark.processes
@pytest.mark.parametrize(
    ("path", "value", "kind", "words"), WRONG, ids=[f"{path}={value}" for path, value, *_ in WRONG]
)
def test_of_one_wrong_claim_every_finding_is_about_it(path: str, value: str, kind: str, words: str) -> None:
    found = changed(path, value)
    assert found.findings
    assert found.consistent == (kind == "unlikely")
    key = path.rpartition(".")[2]
    for each in found.findings:
        assert any(f".{key}" in claim.split(" = ")[0] for claim in each.claims), each
    assert any(each.kind == kind and words in each.arithmetic for each in found.findings), found.findings


@pytest.mark.parametrize(
    ("peak", "agrees"), [("about 50 GB/s", True), ("~50 GB/s", True), ("up to 50 GB/s", False), ("50 GB/s", False)]
)
def test_a_peak_is_exact_unless_the_page_says_that_it_is_not(peak: str, agrees: bool) -> None:
    link = {"bandwidth": "47.6 GB/s", "peak": peak, "utilisation": "93 %"}
    assert of_tree({"links": [link]}).consistent == agrees


def test_a_price_that_was_negotiated_is_likely() -> None:
    """10 and 45 % below the list's, by Savings Plans and private rates; a quarter of it is nobody's."""
    tree = {"instance": "p4d.24xlarge", "market": "on_demand", "region": "us-east-1"}
    assert of_tree({**tree, "price_per_hour": "$19.77"}).findings == ()
    assert of_tree({**tree, "price_per_hour": "$12.10"}).findings == ()
    (found,) = of_tree({**tree, "price_per_hour": "$5.50"}).findings
    assert found.kind == "unlikely"


def test_model_parallel_states_are_divided_in_every_strategy() -> None:
    tree = {"parameters": "20.6B", "gpus": "96 × A100-40", "strategy": "ZeRO-1"}
    assert not of_tree(tree).consistent
    assert of_tree({**tree, "model_parallel": "8"}).findings == ()
    assert not of_tree({**tree, "model_parallel": "4", "strategy": "ddp"}).consistent


def test_the_name_of_a_small_model_is_as_far_from_its_size_as_its_embeddings() -> None:
    assert of_tree({"model": "125M", "parameters": "148,904,448"}).findings == ()
    assert not of_tree({"model": "125M", "parameters": "350M"}).consistent


def test_what_is_done_between_steps_takes_some_of_the_time() -> None:
    tree = {"steps": "100,000", "step_time": "1.00 s"}
    assert of_tree({**tree, "time": "31.0 h"}).findings == ()
    for hours in ("24.0 h", "40.0 h"):
        (found,) = of_tree({**tree, "time": hours}).findings
        assert found.kind == "contradiction"
    assert of_tree({**tree, "time": "40.0 h", "goodput": "70 %"}).findings == ()


@pytest.mark.parametrize("told", [{"page": "LoRA of a 70B on one machine"}, {"variant": "QLoRA"}])
def test_frozen_parameters_have_neither_states_nor_gradients(told: dict[str, str]) -> None:
    """A third of the operations are those of gradients of weights: 4 of 6 per parameter are left."""
    tree = {"model": "70B", "gpus": "8 × A100-80", "throughput": "2,400 tokens/s", "mfu": "27 %"}
    found = of_tree({**tree, "checkpoints": [{"size": "800 MB"}]})
    assert {each.kind for each in found.findings} == {"impossible", "contradiction"}
    found = of_tree({**tree, **told, "checkpoints": [{"size": "800 MB"}]})
    assert found.findings == ()
    assert not of_tree({**tree, **told, "mfu": "10 %"}).consistent
    assert not of_tree({**tree, **told, "bytes_per_parameter": "16"}).consistent


def test_an_interval_in_steps_is_as_long_as_they_are() -> None:
    tree = {"step_time": "2.0 s", "checkpoints": [{"interval_steps": "500 steps", "stall": "20 s", "overhead": "2 %"}]}
    assert of_tree(tree).findings == ()
    (found,) = of_tree({**tree, "step_time": "4.0 s"}).findings
    assert "16.7 min / 500 steps = 2 s" in found.arithmetic


def test_an_outcome_at_the_top_is_told_to_be_of_no_run() -> None:
    found = of_tree({"time": "100 h", "runs": [{"id": "a", "gpus": "32", "cost": "$3,960"}]})
    (told,) = [each for each in found.not_checked if each.claims == ("page.time = 100 h",)]
    assert "runs take settings from the top of the file" in told.arithmetic
