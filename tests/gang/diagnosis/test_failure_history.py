"""The first causes of earlier generations."""

from pathlib import Path

from convoy.gang.diagnosis.failure_history import Past, earlier_failures
from convoy.gang.diagnosis.verdict import FRUITLESS
from convoy.job.events.log import EventWriter
from convoy.job.events.types import FailureDetected, GenerationStarted
from convoy.storage import open_store
from tests.gang.tasks import wait_for


def failed(step: int) -> FailureDetected:
    return FailureDetected(cause="exited", failed_node=0, worker=0, exit_code=1, step=step)


def test_they_are_those_that_node_0_told_oldest_first(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for generation in (1, 2, 3):
        for node, rank in ((0, None), (0, 0), (1, None)):
            writer = EventWriter(store, generation, node, rank)
            writer.append(GenerationStarted())
            writer.append(failed(generation if (node, rank) == (0, None) else 99))
            writer.close()
    assert [cause.step for cause in earlier_failures(store, 3)] == [1, 2]


def test_no_more_are_read_than_a_verdict_looks_at(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    for generation in range(1, FRUITLESS + 3):
        writer = EventWriter(store, generation, 0)
        writer.append(failed(generation))
        writer.close()
    assert [cause.step for cause in earlier_failures(store, FRUITLESS + 3)] == list(range(3, FRUITLESS + 3))


def test_this_attempt_s_follow_and_what_is_no_event_is_passed_over(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    folder = tmp_path / "events/000001/00000"
    folder.mkdir(parents=True)
    (folder / "agent.jsonl").write_bytes(b'half a li\n{"kind": "of a later version"}\n')
    with open(folder / "agent.jsonl", "ab") as log:
        log.write(failed(5).model_dump_json().encode() + b"\n")
    past = Past(store, 2)
    past.add(failed(6))
    wait_for("the earlier ones", lambda: len(past.failures()) == 2)
    assert [cause.step for cause in past.failures()] == [5, 6]


def test_a_store_that_does_not_answer_has_no_past(tmp_path: Path) -> None:
    (tmp_path / "events").write_text("in the way")
    past = Past(open_store(str(tmp_path)), 2)
    past.add(failed(6))
    assert [cause.step for cause in past.failures()] == [6]
