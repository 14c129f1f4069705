"""The logs of ranks in a job's root: which there are, their last lines, and following one through restarts."""

import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.config.errors import ConfigError
from convoy.job.heartbeat import LiveMarker
from convoy.job.rank_logs import TAIL_BYTES, RankLog, available_logs, choose_log, log_name, start_of_last_lines, stream
from convoy.job.record import job_store
from convoy.storage import Store, open_store


@pytest.fixture
def store(store_uri: str) -> Store:
    return job_store(store_uri, "blue")


def put(store: Store, generation: int, rank: int, data: bytes, node: int = 0) -> None:
    store.write(log_name(generation, node, rank), data)


def test_the_logs_that_there_are_are_known_by_their_names(store: Store) -> None:
    put(store, 2, 1, b"abc", node=1)
    put(store, 2, 0, b"a")
    put(store, 1, 0, b"")
    store.write("logs/readme.txt", b"not a rank's")
    assert available_logs(store) == [RankLog(1, 0, 0, 0), RankLog(2, 0, 0, 1), RankLog(2, 1, 1, 3)]


LOGS = [RankLog(g, r, r // 2) for g in (1, 2, 3, 5) for r in range(4) if (g, r) != (5, 3)]


def test_a_rank_s_newest_log_is_chosen() -> None:
    assert choose_log(LOGS, 2) == RankLog(5, 2, 1)
    assert choose_log(LOGS, 3) == RankLog(3, 3, 1)
    assert choose_log(LOGS, 3, 1) == RankLog(1, 3, 1)


@pytest.mark.parametrize(
    ("rank", "generation", "line"),
    [
        (4, None, "--rank 4: has no log; ranks 0 to 3 have"),
        (3, 5, "--rank 3: has no log; ranks 0 to 2 have"),
        (0, 4, "--generation 4: has no logs; generations 1, 2, 3, 5 have"),
    ],
)
def test_a_log_that_there_is_not_is_refused(rank: int, generation: int | None, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        choose_log(LOGS, rank, generation)
    assert str(error.value) == line
    with pytest.raises(ConfigError, match="the job has no logs yet"):
        choose_log([], rank)


@given(
    lines=st.lists(st.binary(max_size=200).map(lambda line: line.replace(b"\n", b"").replace(b"\r", b"")), max_size=20),
    ended=st.booleans(),
    wanted=st.integers(0, 25),
)
def test_the_last_lines_are_found(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], ended: bool, wanted: int
) -> None:
    store = open_store(str(tmp_path_factory.mktemp("root")))
    data = b"\n".join(lines) + b"\n" * ended
    put(store, 1, 0, data)
    (log,) = available_logs(store)
    split = data.splitlines(keepends=True)
    assert store.read(log.name, start_of_last_lines(store, log, wanted)) == b"".join(split[-wanted:] if wanted else [])


def test_the_last_lines_of_a_long_log_are_found_without_reading_all_of_it(store: Store) -> None:
    data = b"".join(b"line %06d %s\n" % (number, b"x" * 100) for number in range(5 * TAIL_BYTES // 100))
    put(store, 1, 0, data)
    (log,) = available_logs(store)
    found = store.read(log.name, start_of_last_lines(store, log, 700))
    assert found.count(b"\n") == 700
    assert data.endswith(found)
    assert len(found) > TAIL_BYTES


def test_what_is_there_is_given_once(store: Store) -> None:
    put(store, 1, 0, b"one\ntwo\n")
    (log,) = available_logs(store)
    assert list(stream(store, log, follow=False)) == [(log, b"one\ntwo\n")]
    assert list(stream(store, log, 4, follow=False)) == [(log, b"two\n")]
    assert list(stream(store, log, 8, follow=False)) == []
    assert list(stream(store, log)) == [(log, b"one\ntwo\n")]  # nobody works on the job


def test_a_log_is_followed_through_the_next_generations_until_the_run_ends(store: Store) -> None:
    put(store, 1, 0, b"one\n")
    pieces: Iterator[tuple[RankLog, bytes]] = stream(store, available_logs(store)[0], poll_seconds=0.01)
    with LiveMarker(store, "blue", "Flow/1"):
        assert next(pieces)[1] == b"one\n"
        put(store, 1, 0, b"one\ntwo\n")
        assert next(pieces)[1] == b"two\n"
        put(store, 1, 0, b"one\ntwo\nthree\n")
        put(store, 2, 0, b"four\n")
        put(store, 2, 1, b"another rank's\n")
        put(store, 3, 0, b"five\n")
        assert [(log.generation, data) for log, data in (next(pieces), next(pieces), next(pieces))] == [
            (1, b"three\n"),
            (2, b"four\n"),
            (3, b"five\n"),
        ]
        threading.Timer(0.1, put, (store, 3, 0, b"five\nlast\n")).start()
        assert next(pieces)[1] == b"last\n"
    assert list(pieces) == []
