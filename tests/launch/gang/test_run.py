"""What a gang's step does before its agent runs."""

from pathlib import Path

import pytest

from convoy.config.errors import ConfigError
from convoy.config.loader import resolve
from convoy.job.heartbeat import LiveMarker, read_mark
from convoy.launch.gang.run import _preparing
from convoy.storage.posix import PosixStore
from tests.gang.tasks import a_node

CONFIG = resolve({}, {})


def test_while_node_0_prepares_the_job_is_marked_as_preparing(tmp_path: Path) -> None:
    store, node = PosixStore(tmp_path), a_node(index=0, nodes=2)
    with _preparing(CONFIG, "blue", store, node, None):
        mark = read_mark(store)
        assert mark is not None
        assert (mark.run, mark.preparing) == (node.run, True)
    assert read_mark(store) is None


def test_the_other_nodes_mark_nothing(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    with _preparing(CONFIG, "blue", store, a_node(index=1, nodes=2), None):
        assert read_mark(store) is None


def test_a_job_that_another_run_has_is_refused_before_anything_is_prepared(tmp_path: Path) -> None:
    store = PosixStore(tmp_path)
    with LiveMarker(store, "blue", "Other/1"), pytest.raises(ConfigError, match=r"run Other/1 on .* is running it now"):
        with _preparing(CONFIG, "blue", store, a_node(index=0, nodes=2), None):
            raise AssertionError("it was prepared")
