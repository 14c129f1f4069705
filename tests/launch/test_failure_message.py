"""The process that started a run reports a failure that no gang could."""

from pathlib import Path

import pytest

from convoy.config.loader import resolve
from convoy.config.notify import TARGET
from convoy.job.generations import form_generation
from convoy.job.record import ensure_record, job_store, keep_config
from convoy.launch.failure_message import notify_of_failure
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
