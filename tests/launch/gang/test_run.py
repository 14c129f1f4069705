"""What a gang's step does before its agent runs, and the data that node 0 prepares for all."""

import os
import select
import sys
import threading
from pathlib import Path

import pytest
from metaflow import metaflow_config

from convoy.config.errors import ConfigError
from convoy.config.loader import resolve
from convoy.gang.task import Node
from convoy.job.generations import FormationError, refuse_formation
from convoy.job.heartbeat import LiveMarker, read_mark
from convoy.launch.gang.run import _marked_preparing, _print_card_place, prepare_on_node_0
from convoy.storage.posix import PosixStore
from tests.gang.tasks import a_node

CONFIG = resolve({}, {})


def test_while_node_0_prepares_the_job_is_marked_as_preparing(tmp_path: Path) -> None:
    store, node = PosixStore(tmp_path), a_node(index=0, nodes=2)
    with _marked_preparing(CONFIG, "blue", store, node, None):
        mark = read_mark(store)
        assert mark is not None
        assert (mark.run, mark.preparing) == (node.run, True)
    assert read_mark(store) is None


def test_the_other_nodes_mark_nothing(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    with _marked_preparing(CONFIG, "blue", store, a_node(index=1, nodes=2), None):
        assert read_mark(store) is None


def test_a_job_that_another_run_has_is_refused_before_anything_is_prepared(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    with LiveMarker(store, "blue", "Other/1"), pytest.raises(ConfigError, match=r"run Other/1 on .* is running it now"):
        with _marked_preparing(CONFIG, "blue", store, a_node(index=0, nodes=2), None):
            raise AssertionError("it was prepared")


@pytest.mark.parametrize(
    ("ui", "place"),
    [
        (None, "python train_flow.py card view 7/train/3"),
        ("https://ui.example.com/", "https://ui.example.com/TrainFlow/7/train/3"),
    ],
)
def test_a_run_says_where_its_live_card_is(
    ui: str | None, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metaflow_config, "UI_URL", ui)
    monkeypatch.setattr(sys, "argv", ["train_flow.py", "run"])
    _print_card_place.cache_clear()
    _print_card_place("TrainFlow/7/train/3")
    assert capsys.readouterr().out == f"live card: {place}\n"


DATA = {"id": "abc", "fingerprint": "def"}


def never() -> dict[str, str]:
    raise AssertionError("only node 0 prepares")


def node(index: int, attempt: int = 0) -> Node:
    return a_node(index=index, nodes=2, attempt=attempt)


def test_the_other_nodes_wait_for_what_node_0_prepares(tmp_path: Path) -> None:
    store, found = PosixStore(tmp_path), list[object]()
    waiting = threading.Thread(target=lambda: found.append(prepare_on_node_0(store, node(1), never)))
    waiting.start()
    assert prepare_on_node_0(store, node(0), lambda: DATA) == DATA
    waiting.join(20)
    assert found == [DATA]


def test_another_attempt_waits_for_its_own(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    prepare_on_node_0(store, node(0), lambda: DATA)
    with pytest.raises(TimeoutError, match="node 0 prepared no data within 0 s"):
        prepare_on_node_0(store, node(1, attempt=1), never, seconds=0.1)


def test_why_node_0_prepared_none_is_told_on_all(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    refuse_formation(store, node(1).formation, "data.corpus.path = /x: does not exist")
    with pytest.raises(FormationError, match=r"data\.corpus\.path = /x: does not exist"):
        prepare_on_node_0(store, node(1), never)


def test_a_node_whose_first_is_gone_does_not_wait(tmp_path: Path) -> None:
    """Locally node 0's process starts the others, which outlive it."""
    asked, asks = os.pipe()
    told, tells = os.pipe()

    class Asked(PosixStore):
        def read(self, name: str, start: int = 0) -> bytes:
            os.write(asks, b".")
            return super().read(name, start)

    if (first := os.fork()) == 0:
        if os.fork() == 0:
            try:
                prepare_on_node_0(Asked(tmp_path), node(1), never)
            except FormationError as error:
                os.write(tells, str(error).encode())
            finally:
                os._exit(0)
        os.read(asked, 1)
        os._exit(0)
    os.waitpid(first, 0)
    assert select.select([told], [], [], 60)[0]
    assert os.read(told, 1000) == b"node 0 ended before it had prepared the data"
    for end in (asked, asks, told, tells):
        os.close(end)
