"""`convoy plan` on files and presets."""

import json
import re
from functools import partial
from pathlib import Path

import pytest

from convoy.benchmark.results.files import write_case
from convoy.planner.config_keys import overrides_text
from convoy.planner.plan_schema import Plan
from convoy.planner.search.result import PlanSearch
from tests.benchmark.cases import a_case, faults, saves
from tests.cli import convoy
from tests.flows.places import CONVOY
from tests.test_import_time import python, relative_cpu_time

pytestmark = pytest.mark.processes

PRESET = "configs/train/gpt-7b-p4d.yaml"
convoy_plan = partial(convoy, "plan")


@pytest.fixture(autouse=True)
def _nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prices are the catalog's."""
    monkeypatch.setenv("CONVOY_ROOT", str(tmp_path))


def test_a_preset_is_planned_by_its_name_and_by_its_file() -> None:
    by_name, by_file = convoy_plan("gpt-7b-p4d", "--json"), convoy_plan(PRESET, "--json")
    assert by_name.exit_code == 0
    assert by_name.stdout == by_file.stdout
    assert Plan.model_validate_json(by_name.stdout).machines.instance_type == "p4d.24xlarge"


def test_what_does_not_fit_is_said_first() -> None:
    done = convoy_plan("gpt-175b-p4d", "--set", "parallel.wrap=block cluster.nodes=16")
    assert done.exit_code == 0
    assert done.stdout.index("Does not fit") < done.stdout.index("Memory")
    assert "with cluster.nodes=" in done.stdout
    assert done.stdout.count("were there room") == 2
    assert "were there room" not in convoy_plan(PRESET).stdout


def test_rows_that_are_filled_up_are_told() -> None:
    told = json.loads(convoy_plan(PRESET, "--json", "--set", "train.micro_batch=5").stdout)["batch"]
    assert (told["passes"], told["sequences_per_pass"], told["padded_sequences"]) == (7, 5, 32 * 3)
    page = " ".join(convoy_plan(PRESET, "--set", "train.micro_batch=5").stdout.split())
    assert "7 passes of 5 sequences, 96 rows of all ranks are padding" in page
    assert "padding" not in convoy_plan(PRESET).stdout
    one = convoy_plan(PRESET, "--set", "train.global_batch=32 train.micro_batch=1").stdout
    assert "1 pass of 1 sequence " in one


def test_keys_are_laid_on_it() -> None:
    done = convoy_plan(PRESET, "--json", "--set", "cluster.nodes=8", "--set", "train.micro_batch=1 train.steps=10")
    told = json.loads(done.stdout)
    assert (told["machines"]["nodes"], told["batch"]["sequences_per_pass"]) == (8, 1)
    assert told["budget"]["tokens"] == 10 * 1024 * 2048


def test_a_type_that_is_named_is_planned_on_whatever_backend() -> None:
    here = convoy_plan(PRESET, "--json", "--set", "cluster.backend=local")
    there = convoy_plan(PRESET, "--json")
    told, rented = (Plan.model_validate_json(done.stdout) for done in (here, there))
    assert told.machines.gpu == "A100"
    assert (told.machines, told.step, told.budget) == (rented.machines, rented.step, rented.budget)
    assert "with cluster.backend = local a run computes on this host" in told.assumed[-1]
    assert told.assumed[:-1] == rented.assumed


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("cluster.nodes=1", "cluster.nodes = 1: must be at least 2 with cluster.backend = kubernetes"),
        ("cluster.backend=batch", "cluster.market = spot: AWS Batch runs no multi-node jobs on spot instances"),
        ("cluster.region=mars-1", "budget.max_cost_usd = 15000: the catalog has no spot price"),
    ],
)
def test_what_the_flow_would_not_start_is_planned_and_said_first(words: str, told: str) -> None:
    plan = Plan.model_validate_json(convoy_plan(PRESET, "--json", "--set", words).stdout)
    assert len(plan.refused) == 1
    assert plan.refused[0].startswith(told)
    assert plan.step is not None
    page = convoy_plan(PRESET, "--set", words).stdout
    assert page.index("The train flow refuses this") < page.index("Memory")


def test_machines_that_are_not_named_are_refused_once() -> None:
    words = "cluster.instance_type=null cluster.nproc_per_node=8"
    plan = Plan.model_validate_json(convoy_plan("llama-13b-p5", "--json", "--set", words).stdout)
    (told,) = plan.refused
    assert told.startswith("cluster.instance_type: required with cluster.backend = batch; known: ")


def test_no_preset_is_refused_for_its_machines() -> None:
    for preset in sorted(Path("configs/train").glob("*.yaml")):
        assert json.loads(convoy_plan(preset, "--json").stdout)["refused"] == [], preset


def test_a_price_of_ones_own_lets_money_be_limited(tmp_path: Path) -> None:
    mine = {"instance": "p4d.24xlarge", "market": "spot", "region": "mars-1", "usd_per_hour": [3.0],
            "date": "2027-01-01", "source": "mine"}  # fmt: skip
    (tmp_path / "prices.json").write_text(json.dumps({"refreshed": "2027-01-01T00:00:00Z", "prices": [mine]}))
    plan = json.loads(convoy_plan(PRESET, "--json", "--set", "cluster.region=mars-1", "--root", tmp_path).stdout)
    assert plan["refused"] == []
    assert plan["budget"]["spot"]["cost"]["usd_per_hour"] == 3.0


def test_measured_figures_are_used() -> None:
    done = convoy_plan(PRESET, "--json", "--stall-seconds", "2", "--durable-seconds", "9", "--restart-seconds", "77")
    told = json.loads(done.stdout)
    saves = told["saves"]
    assert any("another machine is there 10 m 00 s after" in line for line in told["assumed"])
    quick = json.loads(convoy_plan(PRESET, "--json", "--replacement-seconds", "30").stdout)
    assert not any("another machine is there" in line for line in quick["assumed"])
    assert (saves["stall_seconds"], saves["durable_seconds"], saves["restart_seconds"]) == (2.0, 9.0, 77.0)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["gpt-7b"], "gpt-7b: this is a model, without machines and batch; use `convoy plan search gpt-7b`"),
        (
            ["configs/models/gpt-7b.yaml"],
            "configs/models/gpt-7b.yaml: this is a model, without machines and batch; use",
        ),
        (["gpt-7b-p4"], "gpt-7b-p4: no such file, and no preset of"),
        ([PRESET, "--set", "train.stepz=1"], "train.stepz = 1: unknown key"),
        ([PRESET, "--durable-seconds", "1"], "--durable-seconds: must come with --stall-seconds"),
        ([PRESET, "--stall-seconds", "3", "--durable-seconds", "1"], "--durable-seconds 1: must be at least --stall-"),
        ([PRESET, "--set", "parallel.shard_size=5"], "parallel.shard_size = 5: must divide the number of ranks"),
        ([PRESET, "--set", "train.global_batch=1"], "train.global_batch = 1: must be at least the number of ranks, 32"),
        (["default", "--set", "cluster.nodes=1000"], "train.global_batch = 8: must be at least the number of"),
        (["search", "gpt-8b"], "gpt-8b: no such file, and no preset of configs/models or configs/train; did"),
        (["search", "7B"], "7B: no such file, and no preset of configs/models or configs/train; known: gpt-7b"),
        (["search", "gpt-7b", "--market", "spott"], "--market spott: must be one of on-demand, spot, capacity-"),
        (["search", "gpt-7b", "--nodes", "0"], "--nodes 0: must be numbers from 1 on"),
    ],
)
def test_bad_input_is_one_line(words: list[str], line: str) -> None:
    done = convoy_plan(*words)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"convoy: {line}")
    assert done.stderr.count("\n") == 1


def test_a_search_takes_a_model_and_a_configuration() -> None:
    done = convoy_plan("search", "gpt-7b", "--instances", "p4d.24xlarge", "--nodes", "4", "--json")
    found = PlanSearch.model_validate_json(done.stdout)
    assert (found.global_batch, found.sequence_length) == (2048, 2048)
    assert found.tokens == pytest.approx(20 * 6.658e9, rel=0.001)
    of_file = convoy_plan("search", PRESET, "--instances", "p4d.24xlarge", "--nodes", "4", "--tokens", "1e9", "--json")
    found = PlanSearch.model_validate_json(of_file.stdout)
    assert (found.global_batch, found.tokens) == (1024, 477 * 1024 * 2048)


@pytest.mark.parametrize(
    ("asked", "laid_on"),
    [
        (["gpt-7b", "--tokens", "10B", "--region", "us-west-2", "--nodes", "2,3"], "default"),
        ([PRESET, "--global-batch", "512", "--sequence-length", "1024", "--nodes", "2"], PRESET),
    ],
)
def test_the_keys_of_a_search_are_planned_as_it_says(asked: list[str], laid_on: str) -> None:
    told = PlanSearch.model_validate_json(convoy_plan("search", *asked, "--json").stdout)
    assert told.laid_on == laid_on
    for row in told.found[::3]:
        planned = Plan.model_validate_json(convoy_plan(laid_on, "--set", overrides_text(row.keys), "--json").stdout)
        assert planned.budget is not None
        assert planned.step is not None
        assert planned.memory is not None
        assert planned.configured_market is not None
        assert planned.budget.tokens == told.tokens
        assert planned.step.seconds == pytest.approx(row.step_seconds)
        assert planned.memory.share == pytest.approx(row.memory_share)
        assert (planned.configured_market.cost and planned.configured_market.cost.usd) == row.usd


def test_markets_are_those_that_are_asked_for() -> None:
    words = ["search", "gpt-7b", "--nodes", "2", "--instances", "p5", "--json"]
    for market, found in (
        (["on-demand,spot"], {"on_demand", "spot"}),
        (["spot", "capacity_block"], {"spot", "capacity_block"}),
        ([], {"spot", "capacity_block", "on_demand"}),
    ):
        told = json.loads(convoy_plan(*words, *(word for each in market for word in ("--market", each))).stdout)
        assert {row["market"] for row in told["found"]} == found


def test_what_the_backend_refuses_is_left_out_of_the_page() -> None:
    done = convoy_plan("search", "gpt-7b-p5", "--nodes", "1", "--instances", "p5")
    assert "Nothing found" in done.stdout
    assert "Left out, for a run with these would be refused: cluster.nodes = 1: must be at least 2" in done.stdout


def test_the_page_of_a_search_marks_what_nothing_beats() -> None:
    done = convoy_plan("search", "gpt-7b", "--nodes", "2,4", "--max-hours", "400")
    assert done.exit_code == 0
    assert "Cheapest" in done.stdout
    assert any(line.startswith("*") for line in done.stdout.splitlines())
    assert "beyond the limits" in done.stdout


@pytest.mark.sampled(4)
@pytest.mark.parametrize("model", ["gpt-7b", "llama-13b", "custom-30b", "gpt-175b"])
def test_a_search_is_read_at_a_hundred_columns(model: str) -> None:
    """Each machine's line is one line, with the day of its price, and the first one's keys can be copied."""
    lines = convoy_plan("search", model, columns=100).stdout.splitlines()
    assert max(map(len, lines)) <= 100
    told = [line for line in lines[: lines.index("How")] if "× p" in line]
    assert len(told) >= 16
    assert all(re.search(r"\d, 20\d\d-\d\d-\d\d(, old)?$", line.strip()) for line in told)
    for words in ("By old prices", "Prices of 2024-12-31: AWS page", "Assumed: of p5.48xlarge on spot"):
        assert sum(line.startswith(words) for line in lines) == 1, words
    keys = lines.index(next(line for line in lines if line.startswith(f"model={model} ")))
    assert lines[keys - 1].endswith("on top of default, for --set or --config-value set (all: --json):")
    assert "checkpoint.every_steps=" in "".join(lines[keys : keys + 4])


def test_amounts_and_machines_are_understood_as_people_write_them() -> None:
    words = ["search", "gpt-7b", "--nodes", "2", "--json"]
    short = json.loads(convoy_plan(*words, "--instances", "p5", "--tokens", "20B", "--max-usd", "10k").stdout)
    long = json.loads(
        convoy_plan(*words, "--instances", "p5.48xlarge", "--tokens", "20e9", "--max-usd", "10,000").stdout
    )
    assert short == long
    assert {row["instance_type"] for row in short["found"]} == {"p5.48xlarge"}
    refused = convoy_plan(*words, "--max-usd", "cheap")
    assert refused.exit_code == 2
    assert "cheap: must be a number of more than 0, such as 10000, 10k or 1.5T" in refused.stderr


def test_a_search_takes_what_was_measured_of_the_storage() -> None:
    words = ["search", "gpt-7b", "--nodes", "2", "--instances", "p4d", "--json"]
    assumed, told = (
        json.loads(convoy_plan(*words, *more).stdout)
        for more in ([], ["--write-gb-per-second", "2", "--replacement-seconds", "60"])
    )
    assert "--write-gb-per-second" in str(assumed["assumed"])
    assert "--write-gb-per-second" not in str(told["assumed"])
    assert "another machine is there" not in str(told["assumed"])
    assert told["found"][0]["usd"] != assumed["found"][0]["usd"]


def test_a_region_without_prices_is_told() -> None:
    done = convoy_plan("search", "gpt-7b", "--nodes", "2", "--region", "mars-1")
    assert "No price is known" in done.stdout
    assert "of these machines in mars-1" in done.stdout
    assert "the catalog has no prices in mars-1; known: ap-northeast-1, " in done.stdout
    one = convoy_plan(PRESET, "--set", "cluster.region=us-eats-1")
    assert "cluster.region = us-eats-1: the catalog has no prices in us-eats-1; did you mean us-east-1?" in one.stdout
    assert "did you mean" not in convoy_plan(PRESET).stdout


def test_where_nothing_is_within_the_limits_what_is_nearest_is_shown() -> None:
    done = convoy_plan("search", "gpt-7b", "--nodes", "1,2", "--max-hours", "24", columns=100)
    assert done.exit_code == 0
    assert "Nothing is within these limits" in done.stdout
    lines = done.stdout.splitlines()
    for which, first in (("Cheapest", "1 × p5.48xlarge"), ("Fastest", "2 × p5.48xlarge")):
        start = lines.index(f"{which} beyond the limits")
        assert first in next(line for line in lines[start:] if re.match(r"\s*[12] × p", line))


def test_where_nothing_fits_that_is_said_first() -> None:
    done = convoy_plan("search", "gpt-175b", "--nodes", "1,2")
    assert "Nothing found" in done.stdout
    assert done.stdout.index("Nothing found") < done.stdout.index("nothing fits in 90 % of a GPU's memory")


def test_a_plan_imports_nothing_heavy_and_takes_little() -> None:
    """4.6 times the reference when this was written: 0.35 s on an idle machine, 0.5 s beside other work."""
    heavy = "import sys; print('heavy:', *[m for m in ('torch', 'numpy', 'metaflow', 'boto3') if m in sys.modules])"
    run = f"from convoy.cli.main import main; main(['plan', '{PRESET}'], standalone_mode=False); {heavy}"
    assert python("-c", run).splitlines()[-1] == "heavy:"
    assert relative_cpu_time([str(CONVOY), "plan", PRESET]) <= 6.0


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Of a benchmark that saved, and lost a node."""
    for case in [*saves(), *faults()]:
        write_case(tmp_path / "results", case)
    return tmp_path / "results"


def test_saves_and_restarts_are_those_of_a_benchmark(results: Path) -> None:
    told, assumed = (json.loads(convoy_plan(PRESET, "--json", *words).stdout)
                     for words in (("--results", results), ()))  # fmt: skip
    measured = [line for line in told["assumed"] if str(results) in line]
    assert len(measured) == 3
    assert all("2026-11-22" in line for line in measured)
    assert told["saves"]["restart_seconds"] != assumed["saves"]["restart_seconds"]
    assert told["saves"]["stall_seconds"] != assumed["saves"]["stall_seconds"]
    assert not any("a save stops a rank" in line for line in told["assumed"])
    assert any("a save stops a rank" in line for line in assumed["assumed"])


def test_an_option_counts_before_results(results: Path) -> None:
    done = convoy_plan(PRESET, "--json", "--results", results, "--restart-seconds", "77")
    told = json.loads(done.stdout)
    assert told["saves"]["restart_seconds"] == 77.0
    assert not any(line.startswith("a restart") for line in told["assumed"])
    assert any(line.startswith("a save, scaled from what was measured:") for line in told["assumed"])


def test_a_search_takes_saves_and_restarts_of_a_benchmark(results: Path) -> None:
    words = ["search", "gpt-7b", "--nodes", "2,4", "--json"]
    assumed, told, own = (
        json.loads(convoy_plan(*words, *more).stdout)
        for more in ([], ["--results", results], ["--results", results, "--write-gb-per-second", "0.1"])
    )
    measured = [line for line in told["assumed"] if str(results) in line]
    assert sorted(line.split(",")[0].split(":")[0] for line in measured) == [
        "a restart", *["a save"] * 2, *["what a machine writes to the root"] * 2,
    ]  # fmt: skip
    assert sum("which is not p5.48xlarge" in line for line in measured) == 2
    assert told["found"][0]["usd"] != assumed["found"][0]["usd"]
    assert not any("what a machine writes to the root, from" in line for line in own["assumed"])


def test_results_that_tell_nothing_are_refused(tmp_path: Path) -> None:
    write_case(tmp_path / "results", a_case())
    done = convoy_plan(PRESET, "--results", tmp_path / "results")
    assert convoy_plan("search", "gpt-7b", "--results", tmp_path / "results").stderr == done.stderr
    assert done.exit_code == 2
    assert done.stderr == f"convoy: --results {tmp_path / 'results'}: no case that saves, and no drill node-kill\n"
