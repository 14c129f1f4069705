"""The process that started a run reports a failure that no gang could."""

from pathlib import Path

import pytest

from convoy.config.loader import resolve
from convoy.config.notify import TARGET
from convoy.job.generations import form_generation
from convoy.job.record import ensure_record, job_store, keep_config
from convoy.launch.failure_message import notify_of_failure
from convoy.report.notifications import notifier
from convoy.storage import Store
from tests.sinks import webhook

pytestmark = pytest.mark.processes


def job_with(tmp_path: Path, on: list[str]) -> Store:
    store, config = job_store(str(tmp_path), "blue"), resolve({"notify": {"on": on}}, {})
    ensure_record(store, "blue", config, "fingerprint")
    digest = keep_config(store, config)
    form_generation(store, formation="f", nodes=2, world_size=2, config_hash=digest, rendezvous="")
    return store


def test_a_lost_gang_is_reported_once_if_that_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = job_with(tmp_path / "wanted", ["failed"])
    with webhook() as sink:
        monkeypatch.setenv(TARGET, sink.url)
        for _ in range(2):
            notify_of_failure(store, "blue", "node 0 was lost", "convoy run f.py --job blue")
        notify_of_failure(job_with(tmp_path / "unwanted", ["finished"]), "blue", "node 0 was lost", "x")
    assert sink.titles == ["Convoy: blue has failed"]
    lines = sink.bodies[0].splitlines()
    assert (lines[0], lines[-2:]) == (
        "First cause: node 0 was lost", ["Continue: convoy run f.py --job blue", "Card: convoy show blue"],
    )  # fmt: skip


def test_a_target_that_refuses_at_first_and_a_damaged_job_cost_a_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("PAUSE_SECONDS", "AGAIN_SECONDS"):
        monkeypatch.setattr(notifier, name, 0.05)
    store = job_with(tmp_path, ["failed"])
    with webhook() as sink:
        monkeypatch.setenv(TARGET, sink.url)
        sink.answers = [503]
        notify_of_failure(store, "blue", "node 0 was lost", "x")
        for config in Path(store.uri).glob("configs/*"):
            config.write_text("{")
        notify_of_failure(store, "blue", "node 0 was lost", "x")
    assert sink.titles == ["Convoy: blue has failed"]
    refused, damaged = capsys.readouterr().err.splitlines()
    assert refused.endswith("the target did not take it; it is tried again")
    assert (damaged.startswith("convoy: notify: "), "is not JSON" in damaged) == (True, True)
