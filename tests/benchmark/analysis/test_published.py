"""Published runs next to a benchmark's own figures."""

from datetime import date
from typing import Any

import pytest

from convoy.benchmark.fold import fold_cases
from convoy.benchmark.page import benchmark_page
from convoy.benchmark.results.case import Case
from convoy.config.loader import expand_preset
from convoy.display.page import Table, Text
from tests.benchmark.cases import GPU_CONFIG, GPUS, a_case, replaced, throughput
from tests.benchmark.reading import below, headings

P5 = {"device": "NVIDIA H100 80GB HBM3", "instance_type": "p5.48xlarge", "peak_tflops": 989.0}


def gpt_7b(seconds: float = 1.0, length: int = 2048, **hardware: Any) -> Case:
    """131,072 tokens in so many seconds on 32 GPUs, which is 4,096 for each in a second."""
    return a_case(
        "ours", seconds, baseline=None, model="gpt-7b", parameters=6_658_859_008, tokens_per_step=131_072,
        flops_per_token=4.6e10, hardware=replaced(GPUS, **hardware),
        config={**GPU_CONFIG, "data": {"sequence_length": length}},
    )  # fmt: skip


def test_runs_of_the_same_gpu_and_about_the_same_size_are_shown_with_their_day() -> None:
    """The page of llm-foundry has four runs of 7B with 2,048 tokens on A100 of 40 GB: on 8, 32, 64 and 128."""
    (found,) = fold_cases([gpt_7b()]).published
    assert {run.model for run in found.runs} == {"mpt-7b"}
    assert {(run.gpu, run.gpu_memory_bytes, run.sequence_length) for run in found.runs} == {("A100", 40 * 2**30, 2048)}
    assert [run.gpus for run in found.runs] == [8, 32, 64, 128]
    assert {run.published for run in found.runs} == {date(2023, 5, 3)}
    assert found.case == "throughput-a1-ours"
    assert found.tokens_per_second_of_rank == pytest.approx(4096, rel=0.02)
    assert found.mfu == pytest.approx(4096 * 4.6e10 / 312e12, rel=0.02)


def test_a_run_has_the_figures_of_its_source() -> None:
    """7b on 128 H100: 10,475 tokens/s on each, MFU 45.71 %, added to the page on 2024-01-06."""
    (found,) = fold_cases([gpt_7b(**P5)]).published
    run = next(run for run in found.runs if run.gpus == 128)
    assert (run.tokens_per_second_of_gpu, run.mfu, run.published) == (10475, pytest.approx(0.4571), date(2024, 1, 6))
    assert (run.sharding, run.recomputation) == ("fsdp", "none")
    assert "Apache-2.0" in run.source
    assert run.url.startswith("https://github.com/mosaicml/llm-foundry/")


def test_of_several_sequence_lengths_the_nearest_counts() -> None:
    (found,) = fold_cases([gpt_7b(length=9000, **P5)]).published
    assert {run.sequence_length for run in found.runs} == {8192}


@pytest.mark.parametrize("parameters", [4_500_000_000, 8_900_000_000])
def test_a_model_of_another_size_has_no_reference(parameters: int) -> None:
    assert fold_cases([replaced(gpt_7b(), parameters=parameters)]).published == ()


def test_a_cpu_has_no_reference() -> None:
    cases = [replaced(case, parameters=6_658_859_008) for case in throughput()]
    assert fold_cases(cases).published == ()
    assert "Published by others" not in headings(benchmark_page(cases))


def test_a_gpu_that_is_not_the_published_one_has_no_reference() -> None:
    assert fold_cases([gpt_7b(device="NVIDIA L4", instance_type=None)]).published == ()


def test_a_model_that_could_not_be_measured_on_its_machines_has_references_by_its_configuration() -> None:
    config = {**gpt_7b().config, "model": expand_preset({"model": "gpt-7b"})["model"]}
    refused = replaced(
        gpt_7b(device=""), status="refused", reason="no room", blocks=(), parameters=0, config=config
    )  # fmt: skip
    (found,) = fold_cases([refused]).published
    assert (found.case, found.mfu, len(found.runs)) == ("", None, 4)
    texts = [text.text for text in below(benchmark_page([refused]), "Published by others", Text)]
    assert texts[1].endswith("parameters, on p4d.24xlarge: not measured here.")


def test_the_page_says_whose_figures_they_are() -> None:
    page = benchmark_page([gpt_7b()])
    how, own, source = below(page, "Published by others", Text)
    assert how.text.startswith("Measured and published by others, not by Convoy")
    assert "throughput-a1-ours reached 4." in own.text
    (table,) = below(page, "Published by others", Table)
    assert [row[2] for row in table.rows] == [f"{n} × A100 of 40 GiB" for n in (8, 32, 64, 128)]
    assert {row[0] for row in table.rows} == {"2023-05-03"}
    assert "Apache-2.0" in source.text
    assert "https://github.com/mosaicml/llm-foundry/" in source.text
