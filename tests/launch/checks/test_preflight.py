"""Before a run exists: which job it is, whether it can go on, and whether its root can be used."""

import hashlib
import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.config.errors import ConfigError
from convoy.config.json_text import canonical_json
from convoy.config.loader import resolve
from convoy.config.run import RunConfig
from convoy.job.events.registry import GenerationStarted, StepDone
from convoy.job.generations import form_generation
from convoy.job.heartbeat import LiveMarker
from convoy.job.record import ensure_record, job_store, keep_config
from convoy.launch.checks.host import put_python_on_path
from convoy.launch.checks.preflight import (
    FinishedJob,
    check_job_is_free,
    named_job,
    preflight,
    read_spent_seconds,
    settle_price_if_visible,
    with_host_defaults,
)
from convoy.launch.monitor.ports import listen_everywhere
from convoy.launch.pricing import gang_usd_per_hour
from convoy.report.fold import fold
from convoy.storage import Store
from tests.campaign import examples
from tests.launch.price_list import refresh_prices
from tests.report.synthetic import restarted_job, write_log

pytestmark = pytest.mark.campaign

SMALL = {
    "model": {"vocab_size": 256},
    "data": {"corpus": {"kind": "synthetic", "tokens": 1000}, "tokenizer": {"kind": "bpe", "vocab_size": 257}},
    "train": {"steps": 20},
}


@pytest.fixture(autouse=True)
def interpreter_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    put_python_on_path()


def config(root: Path | str, **over: Any) -> RunConfig:
    return resolve({"root": str(root), **SMALL}, over)


def started(root: Path | str, job: str, step: int | None = None, **over: Any) -> Store:
    """A job that a generation has worked on, up to that step."""
    store, ran_with = job_store(str(root), job), config(root, **over)
    ensure_record(store, job, ran_with, "fingerprint")
    form_generation(
        store, formation="f", nodes=1, world_size=1, config_hash=keep_config(store, ran_with), rendezvous=""
    )
    if step is not None:
        store.create(f"commits/000001-{step:09d}.json", b"{}")
    return store


def refusal(action: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        action()
    return str(refused.value)


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)


@examples(25)
@given(names)
def test_a_job_is_named_by_the_option_the_tag_or_both(name: str) -> None:
    assert named_job(name, []) == named_job("", ["x", f"job:{name}"]) == named_job(name, [f"job:{name}"]) == name
    assert named_job(None, []) is named_job("", [f"jobs:{name}", name]) is None
    for option, tags in ((f"{name}b", [f"job:{name}"]), (None, [f"job:{name}", f"job:{name}b"])):
        assert refusal(lambda: named_job(option, tags)).startswith(f"job = {name}, {name}b: must be one name")  # noqa: B023


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        ({"parallel": {"cpu_offload": True}}, "parallel.cpu_offload = true: there is no GPU"),
        (
            {"engine": {"name": "deepspeed", "settings": {"zero_optimization": {"offload_param": {"device": "cpu"}}}}},
            'engine.deepspeed.zero_optimization.offload_param = {"device": "cpu"}: there is no GPU',
        ),
        (
            {"cluster": {"backend": "batch", "instance_type": "p4d.24xlarge", "market": "spot"}},
            "cluster.market = spot: ",
        ),
        ({"root": "{here}/file/x"}, "root = {here}/file/x: {here}/file is not a folder that can be written to"),
        ({"root": "s3://no-such-bucket/jobs"}, "root = s3://no-such-bucket/jobs: "),
        (
            {"checkpoint": {"tiers": ["{here}/file/x"]}},
            "checkpoint.tiers = {here}/file/x: {here}/file is not a folder that can be written to",
        ),
        ({"checkpoint": {"tiers": ["s3://no-such-bucket/x"]}}, "checkpoint.tiers = s3://no-such-bucket/x: "),
    ],
)
def test_what_cannot_work_is_refused_before_the_run(
    over: dict[str, Any], reason: str, tmp_path: Path, s3_environment: str
) -> None:
    (tmp_path / "file").write_text("")
    here = json.loads(json.dumps(over).replace("{here}", str(tmp_path)))
    root = here.pop("root", tmp_path)
    told = refusal(lambda: preflight(config(root, **here), None, "s3" if "cluster" in over else "local"))
    assert told.startswith(reason.replace("{here}", str(tmp_path)))


def test_the_root_is_filled_in_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONVOY_ROOT", str(tmp_path))
    assert with_host_defaults(RunConfig(), 0).root == str(tmp_path)
    assert with_host_defaults(config("/elsewhere"), 0).root == "/elsewhere"


def test_a_new_job_may_start_and_leaves_no_trace(store_uri: str) -> None:
    assert preflight(config(store_uri), "new", "local") is None
    assert job_store(store_uri, "new").sizes("") == {}


def test_a_job_with_no_steps_left_is_finished_and_one_with_steps_left_may_go_on(store_uri: str) -> None:
    started(store_uri, "a", step=20)
    assert preflight(config(store_uri), "a", "local") == FinishedJob("a", 20, 20)
    assert preflight(config(store_uri, train={"steps": 21}), "a", "local") is None


@pytest.mark.parametrize(
    ("over", "key"),
    [
        ({"train": {"seed": 1}}, "train.seed = 1"),
        ({"train": {"global_batch": 7}}, "train.global_batch = 7"),
        ({"data": {"sequence_length": 64}}, "data.sequence_length = 64"),
        ({"data": {"corpus": {"seed": 2}}}, "data.corpus.seed = 2"),
        ({"model": {"n_layers": 3}}, "model.n_layers = 3"),
    ],
)
def test_what_must_stay_fixed_is_refused_before_the_run(tmp_path: Path, over: dict[str, Any], key: str) -> None:
    started(tmp_path, "a", step=10)
    told = refusal(lambda: preflight(config(tmp_path, **over), "a", "local"))
    assert told.startswith(f"{key}: job a was started with ")


def test_the_model_of_a_job_without_a_checkpoint_may_change(tmp_path: Path) -> None:
    started(tmp_path, "a")
    assert preflight(config(tmp_path, model={"n_layers": 3}), "a", "local") is None


def test_a_budget_counts_what_the_card_shows_the_pause_of_a_restart_in_place_included(tmp_path: Path) -> None:
    events = restarted_job()
    store = started(tmp_path, "a")
    write_log(store, events)
    report = fold(events)
    assert read_spent_seconds(store) == report.wall_seconds == pytest.approx(events[-1].t - events[0].t)
    assert sum(generation.seconds for generation in report.generations) < report.wall_seconds


def test_a_live_job_is_refused(tmp_path: Path) -> None:
    store = started(tmp_path, "a", step=10)
    with LiveMarker(store, "blue", "TrainFlow/1"):
        assert "run TrainFlow/1 on" in refusal(lambda: preflight(config(tmp_path), "a", "local"))
        assert "run TrainFlow/1 on" in refusal(lambda: check_job_is_free(config(tmp_path), "a"))
    assert preflight(config(tmp_path), "a", "local") is None
    check_job_is_free(config(tmp_path), "a")


def test_a_job_whose_newest_checkpoint_is_on_a_further_tier_goes_on_from_there(tmp_path: Path, s3_uri: str) -> None:
    root, tiers = str(tmp_path), {"checkpoint": {"tiers": [s3_uri]}}
    started(root, "a", step=10)
    assert preflight(config(root, **tiers), "a", "local") is None
    job_store(s3_uri, "a").create("commits/000001-000000020.json", b"{}")

    assert preflight(config(root, **tiers), "a", "local") == FinishedJob("a", 20, 20)
    assert preflight(config(root), "a", "local") is None


def test_a_root_that_is_empty_while_another_tier_knows_the_job_is_an_outage_and_no_new_job(tmp_path: Path) -> None:
    tier, root = tmp_path / "tier", tmp_path / "root"
    started(tier, "a", step=10)
    told = refusal(lambda: preflight(config(root, checkpoint={"tiers": [str(tier)]}), "a", "local"))
    assert told.startswith(f"root = {root}: {root}/a lacks generation 1 of the job")


def test_a_job_of_the_format_before_is_refused_in_one_line(tmp_path: Path) -> None:
    store = started(tmp_path, "a")
    old: dict[str, Any] = {"format": 1, "generation": 1, "step": 10, "files": {"__0_0.distcp": 5}, "parameters": {}}
    old["checksum"] = hashlib.sha256(canonical_json(old).encode()).hexdigest()
    store.create("commits/000001-000000010.json", json.dumps(old).encode())
    told = refusal(lambda: preflight(config(tmp_path), "a", "local"))
    assert told.startswith(f"commit = {store.uri}/commits/000001-000000010.json: has format 1, of Convoy 0.1, which")
    assert told.endswith("export its model with that version, or name a new job")


def test_a_job_that_lost_its_checkpoints_does_not_start_again_from_the_beginning(tmp_path: Path) -> None:
    store = started(tmp_path, "a", step=10)
    store.create("damaged/000001-000000010.json", b"{}")
    told = refusal(lambda: preflight(config(tmp_path), "a", "local"))
    assert told == "job = a: it had checkpoints, and every one is damaged or gone; name a new job"


def test_what_only_the_cluster_sees_is_not_looked_at() -> None:
    remote = config(
        "/fsx/jobs",
        data={"corpus": {"kind": "files", "path": "/fsx/corpus"}},
        model={"vocab_size": 300},
        train={"global_batch": 64},
        checkpoint={"root_is_shared": True},
        cluster={"backend": "kubernetes", "instance_type": "p4d.24xlarge", "persistent_volume_claims": {"fsx": "/fsx"}},
    )
    began = time.monotonic()
    assert preflight(remote, "a", "s3") is None
    check_job_is_free(remote, "a")
    assert time.monotonic() - began < 5


ON_SPOT: dict[str, Any] = {
    "train": {"global_batch": 64},
    "cluster": {"backend": "kubernetes", "instance_type": "p4d.24xlarge", "market": "spot"},
}


def test_a_port_that_is_taken_is_found_before_the_run_exists(tmp_path: Path) -> None:
    with listen_everywhere(0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"^monitor.port = {port}: it cannot be used on "):
            preflight(config(tmp_path, monitor={"port": port}), None, "local")
    assert preflight(config(tmp_path, monitor={"port": port}, cluster={"nodes": 1}), None, "local") is None


def test_a_budget_is_checked_by_the_price_that_the_run_will_have(s3_uri: str) -> None:
    """Two nodes for an hour cost 19.80 USD by the catalog, and 10 by a refresh."""
    spent = GenerationStarted(t=0.0), StepDone(t=3600.0, step=10, loss=1, grad_norm=1, lr=1, tokens=1, seconds=1)
    store = started(s3_uri, "a", step=10, **ON_SPOT)
    write_log(store, list(spent))
    limited = config(s3_uri, **ON_SPOT, budget={"max_cost_usd": 15})
    assert "job a has used 19.80 USD" in refusal(lambda: preflight(limited, "a", "s3"))
    refresh_prices(s3_uri, spot=5.0)
    assert preflight(limited, "a", "s3") is None
    assert gang_usd_per_hour(settle_price_if_visible(limited)) == 10.0


def test_a_limit_on_money_needs_a_price_which_a_refresh_may_bring(s3_uri: str) -> None:
    far = {**ON_SPOT, "cluster": {**ON_SPOT["cluster"], "region": "af-south-1"}}
    limited = config(s3_uri, **far, budget={"max_cost_usd": 15})
    assert "the catalog has no spot price" in refusal(lambda: preflight(limited, None, "s3"))
    refresh_prices(s3_uri, "af-south-1", spot=5.0)
    assert preflight(limited, None, "s3") is None


def test_all_that_is_to_be_set_up_before_a_first_run_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    remote = config("s3://YOUR-BUCKET/jobs", **ON_SPOT)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    datastore, bucket, extra = refusal(lambda: preflight(remote, None, "local")).split("; also ")
    assert datastore == "METAFLOW_DEFAULT_DATASTORE = local: must be s3 with cluster.backend = kubernetes"
    assert bucket.startswith("root = s3://YOUR-BUCKET/jobs: YOUR-BUCKET is no bucket")
    assert extra.startswith("cluster.backend = kubernetes: needs the extra")


def test_the_default_gang_fits_a_host_with_one_gpu_and_a_chosen_one_is_left_alone() -> None:
    assert with_host_defaults(RunConfig(), 1).cluster.nodes == 1
    assert [with_host_defaults(RunConfig(), gpus).cluster.nodes for gpus in (0, 2, 8)] == [2, 2, 2]
    chosen = resolve({"cluster": {"nodes": 3}}, {})
    assert with_host_defaults(chosen, 1).cluster.nodes == 3
