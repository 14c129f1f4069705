"""The page says what was measured, in plain words, and what was not."""

import json
from typing import Any

import pytest

from convoy.benchmark.analysis.history import rates_by_fingerprint
from convoy.benchmark.page import benchmark_page
from convoy.benchmark.results.case import Case
from convoy.display.markdown import to_markdown
from convoy.display.page import Callout, Chart, Page, Table, Text, Value, Values
from tests.benchmark.cases import (
    GPU_CONFIG,
    HARDWARE,
    SECTIONS,
    a_case,
    replaced,
    runs_of,
    scaling,
    strategies,
    throughput,
    whole,
)
from tests.benchmark.reading import below, headings, of, row


def _value(page: Page, title: str) -> Value:
    items: list[Value] = [v for values in of(page, Values) for v in values.items]
    return next(v for v in items if v.title == title)


def test_a_whole_benchmark_has_every_section_in_order() -> None:
    page = benchmark_page(whole())
    assert headings(page) == SECTIONS
    for chart in of(page, Chart):
        json.dumps(chart.spec, allow_nan=False)


def test_sections_with_nothing_to_tell_do_not_appear() -> None:
    page = benchmark_page([a_case(baseline=None)])
    assert headings(page) == [
        "Benchmark",
        "Throughput",
        "Cost and time to train (computed)",
        "Audit of these figures",
        "Provenance",
    ]
    assert not of(page, Chart)


def test_the_headline_is_of_ours_with_its_interval() -> None:
    page = benchmark_page(whole())
    speedup, transformers = _value(page, "Speedup").value, "transformers in fp32 with DDP (the baseline)"
    assert float(speedup.removesuffix("×")) == pytest.approx(2.0, rel=0.02)
    assert _value(page, "Speedup").subtitle.startswith(f"ours is {speedup} as fast as {transformers}; 1.9")
    assert _value(page, "Speedup").tone == "good"
    assert _value(page, "Memory peak").value == "800 MB"
    where = "4 × p4d.24xlarge, on-demand, price of 2026-11-09"
    assert _value(page, "Cost").subtitle == f"per million tokens, gpt-1b; {where}"
    assert _value(page, "Cases measured") == Value("Cases measured", "11", "1 refused, 1 failed", "bad")


def test_models_without_a_price_share_a_sentence() -> None:
    page = benchmark_page([a_case(), a_case(group="b2", model="gpt-1b")])
    (told,) = below(page, "Cost and time to train (computed)", Text)
    assert told.text.startswith("No cost of tiny, gpt-1b on AMD EPYC 7R13: ")


def test_of_gpus_without_a_price_the_time_is_told() -> None:
    nowhere = {**GPU_CONFIG, "cluster": {"region": "af-south-1"}}
    page = benchmark_page([replaced(case, config=nowhere) for case in strategies()])
    (table,) = below(page, "Cost and time to train (computed)", Table)
    assert table.headers == ("Model", "Machines", "Case", "Tokens", "Time")
    assert [row[3] for row in table.rows] == ["100 B", "500 B", "1.00 T"]
    assert all(row[4].endswith(("h", " days")) for row in table.rows)


def test_on_spot_the_headline_is_the_price_of_spot_and_says_what_is_not_in_it() -> None:
    cluster = {"region": "us-east-1", "market": "spot"}
    config = {**GPU_CONFIG, "cluster": cluster}
    cases = [replaced(case, config=config) for case in strategies()]
    where = "4 × p4d.24xlarge, spot, price of 2026-07-09; interruptions not counted"
    assert _value(benchmark_page(cases), "Cost").subtitle == f"per million tokens, gpt-1b; {where}"


def test_cases_that_are_compared_with_different_ones_say_with_which() -> None:
    shared: dict[str, Any] = {"suite": "strategies", "group": "b"}
    cases = [
        a_case("ddp", 1.0, seed=1, baseline=None, **shared),
        a_case("fsdp", 1.0, seed=2, baseline="ddp", **shared),
        a_case("accelerate FSDP2", 1.25, seed=3, baseline="fsdp", values={"state_bytes": 4.2e6}, **shared),
    ]
    page = benchmark_page(cases)
    (table,) = below(page, "Strategies side by side", Table)
    assert row(table, "accelerate FSDP2")["Speedup"].startswith("0.80")
    assert row(table, "accelerate FSDP2")["Speedup"].endswith(", over fsdp")
    assert row(table, "fsdp")["Speedup"].endswith(", over ddp")
    assert row(table, "accelerate FSDP2")["State of a rank"] == "4.20 MB"
    assert "Largest model" not in table.headers
    charts = {chart.title: chart for chart in below(page, "Strategies side by side", Chart)}
    assert set(charts) == {"Throughput", "Speedup over ddp", "Speedup over fsdp"}
    assert list(charts["Speedup over fsdp"].series) == ["accelerate FSDP2"]


def test_the_largest_model_is_told_as_computed_with_what_it_was_computed_of_also_where_a_case_was_refused() -> None:
    shared: dict[str, Any] = {"suite": "strategies", "group": "b"}
    memory = {"rank_memory_bytes": 80e9, "rank_host_bytes": 100e9}
    of_ddp = {"largest_model_parameters": 5e9, "largest_model_layers": 30, **memory}
    of_fsdp = {"largest_model_parameters": 40e9, "largest_model_layers": 241, **memory}
    cases = [
        a_case("fsdp", 1.0, seed=1, baseline=None, values=of_fsdp, **shared),
        a_case("ddp", baseline="fsdp", status="refused", reason="no room", blocks=(), values=of_ddp, **shared),
    ]
    page = benchmark_page(cases)
    (table,) = below(page, "Strategies side by side", Table)
    assert row(table, "fsdp")["Largest model"] == "40.0 B, 241 layers"
    assert row(table, "ddp")["Largest model"] == "5.00 B, 30 layers"
    meant = next(text.text for text in below(page, "Strategies side by side", Text) if "Largest" in text.text)
    assert meant.startswith("Largest model: computed, not measured.")
    assert "80.0 GB of memory of a rank, and 100 GB of its host's" in meant
    assert "Largest model: computed, not measured." in to_markdown(page)
    assert "Further figures" not in to_markdown(page)


def test_a_known_peak_gives_mfu() -> None:
    """1,048,576 tokens in 1.4 s at 7.2 GFLOP each on 32 ranks of 312 TFLOP/s: 54 %."""
    (table,) = below(benchmark_page(strategies()), "Strategies side by side", Table)
    assert float(row(table, "ddp")["MFU"].removesuffix(" %")) == pytest.approx(54.0, rel=0.02)
    assert "Share of matmul rate" not in table.headers


def test_the_work_of_the_whole_gang_is_in_flops_per_second() -> None:
    """1,048,576 tokens in 1.4 s at 7.2 GFLOP each are 5.39 PFLOP/s; 2,048 in 0.5 s at 20 MFLOP 81.9 GFLOP/s."""
    (table,) = below(benchmark_page(strategies()), "Strategies side by side", Table)
    number, unit = row(table, "ddp")["Model FLOP/s"].split(" ")
    assert (float(number), unit) == (pytest.approx(5.39, rel=0.02), "PFLOP/s")
    subtitle = _value(benchmark_page(throughput()), "Share of matmul rate").subtitle
    number, unit = subtitle.removeprefix("ours: model FLOP/s, ").split(" ")[:2]
    assert (float(number), unit) == (pytest.approx(81.9, rel=0.02), "GFLOP/s")
    assert subtitle.endswith(" of all ranks, over a plain matmul here")


def test_losses_that_differ_are_told_before_any_number() -> None:
    page = benchmark_page(whole())
    first = next(i for i, block in enumerate(page.blocks) if isinstance(block, Callout | Values))
    callout = page.blocks[first]
    assert isinstance(callout, Callout)
    assert callout.title == "zero-3 (strategies, gpt-1b): losses differ from those of ddp"
    assert "up to 6.33 % off" in callout.text
    assert callout.tone == "bad"
    (table,) = below(page, "Strategies side by side", Table)
    assert row(table, "zero-3")["Losses"] == "DIFFER BY 6.33 %"


def test_drifting_step_times_are_told() -> None:
    page = benchmark_page([a_case(baseline=None, steady=False)])
    (callout,) = of(page, Callout)
    assert callout.tone == "warning"
    assert callout.text.startswith("ours (throughput): warm-up ended after 16 steps")
    assert "measure.warm_up_most" in callout.text
    (table,) = below(page, "Throughput", Table)
    assert table.rows[0][-1] == "16 steps, still drifting"


def test_memory_is_beside_the_baseline_s() -> None:
    (chart,) = below(benchmark_page(strategies()[:2]), "Memory", Chart)
    assert chart.series == {"ddp": (28e9,), "fsdp": (9e9,)}
    assert [v["part"] for v in chart.spec["data"]["values"]] == ["tensors", "tensors"], "as in older results"
    assert "Memory" not in headings(benchmark_page(strategies()[:1]))


def test_the_memory_suite_tells_what_takes_more_and_what_is_fragmented() -> None:
    shared: dict[str, Any] = {"suite": "memory", "group": "m"}
    parts = {"memory_parameters_bytes": 4e6, "memory_optimizer_bytes": 8e6, "memory_gradients_bytes": 0.0}
    cases = [
        a_case("plain", baseline=None, memory_peak_bytes=100_000_000, values=parts, **shared),
        a_case("loss at once", baseline="plain", memory_peak_bytes=110_000_000, **shared,
               values={**parts, "memory_step_bytes": 98e6, "memory_fragmentation": 0.1}),
    ]  # fmt: skip
    page = benchmark_page(cases)
    (chart,) = below(page, "Memory", Chart)
    values = chart.spec["data"]["values"]
    assert [v["part"] for v in values if v["name"] == "loss at once"] == ["parameters", "optimizer", "step"]
    assert [v["value"] for v in values if v["name"] == "loss at once"] == pytest.approx([4, 8, 98])
    (table,) = below(page, "Memory", Table)
    more = row(table, "loss at once")
    assert (more["Saved"], more["Fragmentation"]) == ("10.0 % more", "10.0 %")
    assert "Further figures" not in headings(page)


def test_scaling_of_one_size_says_that_it_tells_nothing() -> None:
    one = scaling()[:1]
    assert Text("No case of more ranks was measured, so efficiency is not known.") in benchmark_page(one).blocks
    silent = [replaced(case, values={"weak": 1.0}) if case.name == "weak" else case for case in scaling()[:2]]
    texts = [text.text for text in of(benchmark_page(silent), Text)]
    assert any(text.startswith("Communication was not measured") for text in texts)


def test_scaling_is_relative_to_the_fewest_ranks_where_one_has_no_room() -> None:
    one, weak, _, jobs = scaling()
    hardware = [replaced(case.hardware, ranks=8 * case.hardware.ranks) for case in (one, weak, jobs)]
    cases = [replaced(case, hardware=each) for case, each in zip((one, weak, jobs), hardware, strict=True)]
    cases[1] = replaced(cases[1], values={"weak": 1.0})
    page = benchmark_page(cases)
    (table,) = below(page, "Scaling", Table)
    found = row(table, "weak")
    assert float(found["Overhead"].split(" ")[0]) == pytest.approx(100 * (1 / 0.9 - 1), abs=1)
    assert found["Overhead"].endswith("relative to 8 ranks")
    assert float(found["Communication added"].split(" ")[0]) == pytest.approx(100 * (1 - 0.9 / 0.95), abs=1)
    assert row(table, "reference")["Ranks"] == "8"
    texts = " ".join(text.text for text in of(page, Text))
    assert "as few ranks as have" in texts
    assert "Communication was not measured" not in texts
    assert _value(page, "Scaling efficiency").subtitle.endswith("weak, 16 ranks relative to 8")
    assert "as few ranks as have" not in to_markdown(benchmark_page(scaling()))


def test_prices_stand_with_their_day_and_source() -> None:
    offers, training = below(benchmark_page(strategies()), "Cost and time to train (computed)", Table)
    demand, reserved, spot = offers.rows
    assert demand[:4] == ("gpt-1b", "4 × p4d.24xlarge, us-east-1", "on-demand", "87.83")
    assert reserved[2:4] == ("reserved", "55.68")
    assert spot[3] == "39.60 (26.12 to 55.96 by zone)"
    assert demand[5].startswith("2026-11-09, AWS price list")
    assert training.headers[-3:] == ("USD on-demand", "USD reserved", "USD spot")
    assert training.rows[0][3] == "100 B"
    usd = float(training.rows[0][5].replace(",", ""))
    assert usd == pytest.approx(100e9 / (1_048_576 / 1.3) / 3600 * 87.83, rel=0.02)


def test_what_did_not_run_is_told_with_its_reason() -> None:
    page = benchmark_page(whole())
    (table,) = below(page, "Refused and failed", Table)
    assert set(table.rows) == {
        ("strategies", "pipeline", "refused", "needs 80 GB, has 40 GB"),
        ("strategies", "tensor", "failed", "rank 3: CUDA error"),
    }


def test_a_benchmark_of_which_nothing_ran_still_tells_why() -> None:
    page = benchmark_page([a_case(status="failed", reason="no room", blocks=())])
    assert headings(page) == ["Benchmark", "Refused and failed", "Provenance"]
    assert _value(page, "Throughput") == Value("Throughput", "—", "no case was measured", "warning")


def test_a_machine_that_was_never_used_is_not_in_the_headline() -> None:
    measured, refused = a_case(), a_case(suite="scaling", group="large", status="refused", reason="no room", blocks=())
    refused = replaced(refused, hardware=replaced(refused.hardware, device="", instance_type=None, nodes=4))
    line = of(benchmark_page([measured, refused]), Text)[0].text
    assert line.startswith(f"{measured.hardware.machines}, ")
    assert "4 ×" not in line


def test_no_case_at_all_is_a_page_too() -> None:
    (callout,) = of(benchmark_page([]), Callout)
    assert callout.title == "Nothing was measured"


def test_a_regression_is_marked_in_the_history() -> None:
    case = a_case(baseline=None)
    rates = [4600.0 + 10 * (-1) ** i for i in range(12)] + [4100.0 + 10 * (-1) ** i for i in range(4)]
    page = benchmark_page([case], rates_by_fingerprint(runs_of(case, rates)))
    (table,) = below(page, "History", Table)
    assert "REGRESSION by 10" in table.rows[0][3]
    assert "since 2026-11-18" in table.rows[0][3]
    assert table.rows[0][4] == "none yet: too few runs since the last change"
    (chart,) = below(page, "History", Chart)
    assert chart.spec["layer"][0]["data"]["values"] == [{"run": 12.5}]


def test_a_history_that_is_too_short_says_so() -> None:
    case = a_case(baseline=None)
    page = benchmark_page([case], rates_by_fingerprint(runs_of(case, [4000.0, 4100.0])))
    assert below(page, "History", Table)[0].rows[0][3] == "too few runs: 11 more runs needed"
    (text,) = below(benchmark_page([case], {}), "History", Text)
    assert text.text.startswith("No earlier run has the same fingerprint")


def test_figures_of_a_suite_that_the_page_does_not_know_are_shown() -> None:
    page = benchmark_page([a_case(baseline=None, values={"gaps_per_token": 0.0123})])
    (table,) = below(page, "Further figures", Table)
    assert table.rows == (("throughput", "ours", "gaps_per_token", "0.0123"),)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"throughput-gpt-1b": "gpt-1b", "throughput-tiny": "tiny"}, ["Throughput: gpt-1b", "Throughput: tiny"]),
        ({"throughput-a-2-1": "a-2", "throughput-a-2-2": "a-2"}, ["Throughput: gang 1", "Throughput: gang 2"]),
        ({"throughput-a": "a", "throughput-b-model-parallel-2": "b, cut"},
         ["Throughput: a", "Throughput: b, tensor and pipeline parallel, gang 2"]),
    ],
)  # fmt: skip
def test_groups_of_a_suite_are_told_apart_in_words(groups: dict[str, str], expected: list[str]) -> None:
    cases: list[Case] = [a_case(baseline=None, group=group, model=model) for group, model in groups.items()]
    assert headings(benchmark_page(cases))[1:3] == expected


def test_the_headline_tells_what_the_baseline_is() -> None:
    level = [a_case("ours", seed=1, baseline=None), a_case("baseline", seed=2, baseline="ours")]
    words = "no difference detected between ours and transformers in fp32 with DDP (the baseline); "
    assert _value(benchmark_page(level), "Speedup").subtitle.startswith(words)
    one = replaced(HARDWARE, ranks=1)
    alone = [replaced(case, hardware=one) for case in throughput()]
    assert " as fast as transformers in fp32 (the baseline); " in _value(benchmark_page(alone), "Speedup").subtitle


def test_provenance_tells_that_memory_or_a_matmul_is_not_known() -> None:
    unknown = benchmark_page([a_case(hardware=replaced(HARDWARE, memory_bytes=0, matmul_tflops=None))])
    assert below(unknown, "Provenance", Table)[0].rows[0][-2:] == ("not known", "not measured")


def test_origins_of_one_commit_that_contradict_each_other_in_nothing_are_told_together() -> None:
    first = a_case()
    packages = replaced(first.provenance, versions=first.provenance.versions | {"transformers": "5.23.0"})
    bare = replaced(first.provenance, environment={})
    other = replaced(first.provenance, versions={"torch": "2.14.0"})
    told = [first, *(a_case(str(i), provenance=each) for i, each in enumerate((packages, bare, other)))]
    _, *origins = below(benchmark_page(told), "Provenance", Table)
    together, unset, apart = (set(origin.rows) for origin in origins)
    assert {("torch", "2.13.0+cpu"), ("transformers", "5.23.0"), ("OMP_NUM_THREADS", "1")} <= together
    assert not [row for row in unset if row[0] == "OMP_NUM_THREADS"]
    assert ("torch", "2.14.0") in apart


def test_the_same_cases_give_the_same_page_whatever_their_order() -> None:
    assert benchmark_page(whole()) == benchmark_page(whole()[::-1])
