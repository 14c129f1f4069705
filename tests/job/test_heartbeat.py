"""Only one run of a job at a time."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from convoy.config.errors import ConfigError
from convoy.job.heartbeat import EXPIRES_SECONDS, LIVE, LiveMark, LiveMarker, check_not_live, is_live, read_mark
from convoy.storage import Store, open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path))


def test_a_second_run_is_refused_while_the_first_runs_and_welcome_afterwards(store: Store):
    with LiveMarker(store, "blue", "TrainFlow/1"):
        check_not_live(store, "blue", "TrainFlow/1")  # a retry
        with pytest.raises(ConfigError, match=r"job = blue: run TrainFlow/1 on .* is running it now"):
            check_not_live(store, "blue", "TrainFlow/2")
    check_not_live(store, "blue", "TrainFlow/2")
    assert read_mark(store) is None


def test_a_run_killed_on_this_host_is_dead_at_once(store: Store):
    code = (
        "import sys, os, signal\n"
        "from convoy.storage import open_store\n"
        "from convoy.job.heartbeat import LiveMarker\n"
        "LiveMarker(open_store(sys.argv[1]), 'blue', 'TrainFlow/1').__enter__()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code, store.uri], check=False)
    assert read_mark(store) is not None
    check_not_live(store, "blue", "TrainFlow/2")


def test_on_another_host_the_age_of_the_mark_decides_and_on_this_one_its_process():
    mark = LiveMark(run="r", host="elsewhere", pid=1, pid_started="1", beat=1000.0)
    assert is_live(mark, 1000.0 + EXPIRES_SECONDS - 1)
    assert not is_live(mark, 1000.0 + EXPIRES_SECONDS + 1)
    reused = LiveMark(run="r", host=socket.gethostname(), pid=os.getpid(), pid_started="1", beat=time.time())
    assert not is_live(reused, time.time())


def test_a_marker_that_lost_the_job_leaves_the_new_owners_mark(store: Store):
    with LiveMarker(store, "blue", "TrainFlow/1"):
        other = LiveMark(run="TrainFlow/2", host="elsewhere", pid=1, pid_started="1", beat=time.time())
        store.write(LIVE, other.model_dump_json().encode())
    assert read_mark(store) == other


def test_of_two_runs_that_both_saw_no_mark_one_gets_it(store: Store):
    with LiveMarker(store, "blue", "TrainFlow/1"):
        with pytest.raises(ConfigError, match=r"job = blue: run TrainFlow/1 on .* is running it now"):
            LiveMarker(store, "blue", "TrainFlow/2").__enter__()
        mark = read_mark(store)
        assert mark is not None
        assert mark.run == "TrainFlow/1"


def test_a_dead_runs_mark_is_taken_over(store: Store):
    dead = LiveMark(run="TrainFlow/1", host="elsewhere", pid=1, pid_started="1", beat=time.time() - EXPIRES_SECONDS - 1)
    store.write(LIVE, dead.model_dump_json().encode())
    with LiveMarker(store, "blue", "TrainFlow/2"):
        mark = read_mark(store)
        assert mark is not None
        assert mark.run == "TrainFlow/2"


def test_of_two_marks_of_one_run_the_older_one_takes_away_only_itself(store: Store):
    older = LiveMarker(store, "blue", "TrainFlow/1", preparing=True).__enter__()
    with LiveMarker(store, "blue", "TrainFlow/1"):
        older.__exit__()
        mark = read_mark(store)
        assert mark is not None
        assert not mark.preparing
    assert read_mark(store) is None
