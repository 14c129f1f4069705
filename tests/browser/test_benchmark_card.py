"""The benchmark flow, run as cron runs it: what it leaves for the Client API, and its card in a real browser."""

import itertools
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.figures import losses_agree, tokens_per_second
from convoy.benchmark.results.values import BEYOND, DETECTED, RECOVERED
from convoy.display.formatting import rate
from tests.browser.pages import screenshot
from tests.browser.test_cards import _open, _text
from tests.flows.places import REPOSITORY, Place

MAX_SECONDS = 900.0
"""For nine gangs one after the other, on a machine that does something else too."""

pytestmark = [pytest.mark.system, pytest.mark.timeout(MAX_SECONDS + 60)]

FLOW = REPOSITORY / "flows" / "benchmark_flow.py"
QUICK = (
    "suites=[throughput,scaling,strategies,memory,utilisation,sync,checkpoint,recovery] cases=null "
    "measure.rounds=6 measure.block_seconds=0.02 measure.block_steps=1 measure.warm_up_most=16 "
    "measure.machine_seconds=0.1 "
    "run.data.sequence_length=32 run.data.corpus.kind=synthetic run.train.global_batch=4 run.train.micro_batch=2 "
    "run.model.n_layers=2 run.model.d_model=48 run.model.max_sequence_length=32 "
    "predict.least_mb_per_writer=1 recovery.drills=[node-kill]"
)
COMPILER = "TORCHINDUCTOR_VEC_ISA_OK=1 TORCHINDUCTOR_COMPILE_THREADS=1"
"""It is not first tried on small libraries, nor run by processes that each import torch: seconds, for a few graphs."""


@dataclass(frozen=True)
class Benchmark:
    """One run of the flow."""

    place: Place
    run: str
    cases: dict[str, Case]
    """By group and name."""
    times: list[dict[str, Any]]
    card: Path


@pytest.fixture(scope="module")
def benchmark(tmp_path_factory: pytest.TempPathFactory) -> Benchmark:
    place = Place(tmp_path_factory.mktemp("benchmark"))
    done = place.run_by_cron(f"{COMPILER} {sys.executable} {FLOW} --config-value set '{QUICK}' run", MAX_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    run = re.search(r"run-id (\d+)", done.stdout + done.stderr)
    assert run is not None
    path = f"BenchmarkFlow/{run[1]}"
    data = place.client(f"run = Run({path!r})\nanswer = [run.data.results, run.data.times]")
    cases = [Case.model_validate(case) for case in data[0]]
    (card,) = place.folder.glob(f".metaflow/mf.cards/{path.replace('/', '/runs/')}/steps/report/tasks/*/cards/*.html")
    return Benchmark(place, path, {f"{case.suite}/{case.name}": case for case in cases}, data[1], card)


def test_every_case_was_measured_and_computed_the_same(benchmark: Benchmark) -> None:
    assert {case.status for case in benchmark.cases.values()} == {"measured"}
    asked = shlex.join(["python", str(FLOW), "--config-value", "set", QUICK, "run"])
    assert {case.provenance.command for case in benchmark.cases.values()} == {asked}
    for suite in ("throughput", "strategies"):
        own = [case for case in benchmark.cases.values() if case.suite == suite]
        assert len(own) >= 4
        for case in own:
            tolerance = 1e-2 if case.config["train"]["param_dtype"] == "bf16" else 1e-3
            assert losses_agree(case, benchmark.cases[f"{suite}/{case.baseline or case.name}"], tolerance), case.name


def test_gangs_on_one_host_run_one_after_the_other(benchmark: Benchmark) -> None:
    times = sorted(benchmark.times, key=lambda each: each["began"])
    assert [each["name"] for each in times] == [
        "throughput-tiny", "scaling-tiny", "strategies-tiny", "strategies-tiny-model-parallel", "memory-tiny",
        "utilisation-tiny", "sync-tiny", "checkpoint-tiny", "recovery",
    ]  # fmt: skip
    assert all(before["ended"] <= after["began"] for before, after in itertools.pairwise(times))
    assert all(each["failure"] == "" for each in times)


def test_steps_were_predicted_from_what_ranks_measured(benchmark: Benchmark) -> None:
    told = {name: case.predicted for name, case in benchmark.cases.items()}
    assert told["recovery/node-kill"] is None
    for name in ("throughput/ours", "throughput/bf16", "strategies/ddp", "strategies/tensor 2", "strategies/pipeline 2",
                 "scaling/2 jobs of 1 rank", "memory/recomputed", "sync/with synchronisation"):  # fmt: skip
        found = told[name]
        assert found is not None
        assert (found.step_seconds or 0) > 0, f"{name}: {found.why_no_step}"


def test_a_killed_node_is_drilled_and_told(benchmark: Benchmark) -> None:
    case = benchmark.cases["recovery/node-kill"]
    assert case.values[values.RECOVERED_TRIALS] == 1, case.reason
    assert case.values[values.STATES_EQUAL] == 1
    assert 0 < case.samples[DETECTED][0] < case.samples[RECOVERED][0] <= case.samples[BEYOND][0]


def test_the_card_has_every_section_and_the_run_s_own_numbers(benchmark: Benchmark, browser: webdriver.Chrome) -> None:
    _open(browser, benchmark.card, "light")
    WebDriverWait(browser, 30).until(lambda b: len(b.find_elements(By.CSS_SELECTOR, ".vega-embed svg")) >= 4)
    text = _text(browser)
    for part in (
        "Throughput", "Scaling", "Strategies", "Memory", "Utilisation", "Gradient synchronisation", "Cost",
        "Step time", "Predicted and measured", "Saves", "Recovery", "campaign", "History", "Provenance",
    ):  # fmt: skip
        assert part.casefold() in text.casefold(), part
    measured = tokens_per_second(benchmark.cases["throughput/ours"])
    assert measured is not None
    assert rate(measured.estimate) in text
    assert "differ from those" not in text
    assert "not known" not in text.partition("Efficiency is throughput")[2].partition("Cost")[0]
    assert "side by side: tensor and pipeline parallel" in text.casefold()
    for name in ("baseline", "compiled", "2 jobs of 1 rank", "fsdp by linear", "tensor 2", "pipeline 2"):
        assert name in text
    assert len(screenshot(browser, "benchmark-light")) > 30_000


def test_a_dry_run_tells_the_gangs_and_starts_none(benchmark: Benchmark) -> None:
    done = benchmark.place.run(sys.executable, FLOW, "run", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert '"suites"' in done.stdout
    assert "scaling-tiny: 2 (2 nodes × 1) ranks: 1 rank; 2 jobs of 1 rank" in done.stderr
    assert "6 groups, one after the other" in done.stderr


def test_what_does_not_fit_is_refused_before_a_run_exists(benchmark: Benchmark) -> None:
    done = benchmark.place.run(sys.executable, FLOW, "--config-value", "set", "models=[gpt-175b]", "run")
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("convoy: model = gpt-175b: any case of throughput-gpt-175b")
    assert "GiB" in done.stderr
