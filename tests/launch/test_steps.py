"""How a step fails, and what the other nodes' cards say."""

from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest
from metaflow.exception import MetaflowException

from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.display.page import Callout, Heading, Text
from convoy.gang.messages import GangOutcome, PreemptedError
from convoy.gang.task import Node, Task
from convoy.job.record import job_store
from convoy.launch.gang.step import GangFailedError, pointer_page
from convoy.launch.plans import NAME, read_plan
from convoy.launch.steps import plain_errors, report, summary
from convoy.planner.plan import plan
from convoy.storage import StoreUnavailable
from metaflow_extensions.convoy.plugins.cards.convoy import components
from tests.report.plans import planned, rented
from tests.report.synthetic import finished_job, write_log

METRICS = {"outcome": "finished", "step": 20, "initial_bits_per_byte": 4.0, "bits_per_byte": 2.0}


@pytest.mark.parametrize("error", [ConfigError("a = 1: no"), StoreUnavailable("no answer"), GangFailedError("rank 1")])
def test_what_a_person_can_act_on_becomes_metaflow_s_plain_error(error: Exception) -> None:
    with pytest.raises(MetaflowException) as failed, plain_errors(GangFailedError):
        raise error
    assert (str(failed.value.message), failed.value.headline) == (str(error), "Convoy")
    assert failed.value.__suppress_context__


def test_a_preemption_has_a_headline_of_its_own() -> None:
    with pytest.raises(MetaflowException) as ended, plain_errors(PreemptedError):
        raise PreemptedError("preempted: node 1 had a notice (spot): soon")
    assert (ended.value.headline, str(ended.value.message)[:17]) == ("Convoy: preempted", "preempted: node 1")


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), plain_errors():
        1 / 0  # noqa: B018


def test_the_summary_names_the_outcome_and_where_things_are() -> None:
    lines = summary("a", METRICS, "s3://b/commit", None).splitlines()
    assert lines == [
        "job a: finished at step 20",
        "bits per byte 4.000 -> 2.000, 0.500 of the start",
        "checkpoint s3://b/commit",
        "model not exported",
    ]
    without_bytes = METRICS | {"initial_bits_per_byte": None, "bits_per_byte": None}
    assert "bits" not in summary("a", without_bytes, None, None)


def test_the_last_card_has_the_plan_of_its_own_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, own, drawn = rented(), planned(), []
    settled = config.model_copy(update={"root": str(tmp_path)})
    store = job_store(str(tmp_path), "a", settled)
    write_log(store, finished_job())
    store.write(NAME, plan(rented(nodes=4)).model_dump_json().encode())
    monkeypatch.setattr(components, "show", lambda card, page: drawn.append(page))
    told = report(settled.model_dump(mode="json"), "a", SimpleNamespace(card=None), own.model_dump(mode="json"))
    assert told.plan == own.model_dump(mode="json")
    assert read_plan(store) == own
    assert len(drawn) == 1
    kept = report(settled.model_dump(mode="json"), "a", SimpleNamespace(card=None))  # begun by an older version
    assert kept.plan == told.plan


@pytest.mark.parametrize(("per_node", "ranks"), [(1, "rank 3"), (8, "ranks 24 to 31")])
def test_a_node_s_page_names_its_ranks_and_the_task_with_the_live_card(per_node: int, ranks: str) -> None:
    task = Task(RunConfig(), "a", "/root", "data", "fingerprint", None)
    node = Node(3, 4, per_node, "host", "TrainFlow/7", "f", 0, False)
    title, who, where = pointer_page(task, node, "TrainFlow/7/train/3").blocks
    assert (title, who) == (Heading("Node 3 of 4", level=1), Text(f"Job a, {ranks}", quiet=True))
    assert isinstance(where, Text)
    assert where.text.endswith("node 0: TrainFlow/7/train/3")


@pytest.mark.parametrize(("outcome", "title"), [("failed", "Failed"), ("preempted", "Preempted")])
def test_a_node_s_page_says_how_the_gang_ended_where_that_was_not_as_it_should(
    outcome: Literal["failed", "preempted"], title: str
) -> None:
    task = Task(RunConfig(), "a", "/root", "data", "fingerprint", None)
    node = Node(1, 2, 1, "host", "TrainFlow/7", "f", 0, False)
    blocks = pointer_page(task, node, "TrainFlow/7/train/3", GangOutcome(outcome=outcome, message="rank 1")).blocks
    assert blocks[1] == Callout(title, "rank 1")
    by_hand = GangOutcome(outcome="preempted", message="interrupted: Ctrl-C")
    assert pointer_page(task, node, "x", by_hand).blocks[1] == Callout("Interrupted", "interrupted: Ctrl-C")
    assert len(pointer_page(task, node, "x", GangOutcome(outcome="finished")).blocks) == 3
