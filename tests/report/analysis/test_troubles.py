"""What is not as it should be while the gang goes on, on pages and in the timeline."""

from io import StringIO

import pytest
from rich.console import Console

from convoy.display.page import Callout
from convoy.display.terminal import show
from convoy.job.events.registry import (
    GangStopped,
    GenerationStarted,
    NodeChecked,
    NoticeSources,
    SlowNode,
    StorageBad,
    StorageGood,
)
from convoy.report.analysis.timeline import TOGETHER_SECONDS, nodes_in_words
from convoy.report.fold import fold
from convoy.report.pages.train import final_page, live_page
from tests.report.synthetic import CONFIG, Log, blocks, failed_job, restarted_job, running_job

FULL = "No space left on device"


def lines(log: Log) -> list[str]:
    return [moment.text for moment in fold(log.events).timeline]


def test_a_tier_in_trouble_stands_on_the_card_until_it_is_well() -> None:
    log = Log(events=running_job())
    for node in (0, 1):
        log.add(StorageBad(tier="/fsx/a", problem=FULL, seconds=0.1), node=node)
        log.wait(0.5)
    (trouble,) = fold(log.events).storage_troubles
    assert (trouble.tier, trouble.problem, trouble.nodes, trouble.since) == ("/fsx/a", FULL, (0, 1), log.t - 1.0)
    (shown,) = blocks(live_page(fold(log.events), CONFIG), Callout)
    assert (shown.title, shown.tone) == (f"Storage /fsx/a: {FULL}", "warning")
    assert shown.text == "Seen on nodes 0, 1. Training continues; nothing can be saved meanwhile."

    log.add(StorageGood(tier="/fsx/a", seconds=60.0), node=0)
    (trouble,) = fold(log.events).storage_troubles
    assert trouble.nodes == (1,)
    log.add(StorageGood(tier="/fsx/a", seconds=61.0), node=1)
    assert fold(log.events).storage_troubles == ()
    assert blocks(live_page(fold(log.events), CONFIG), Callout) == []
    assert lines(log)[-2:] == [
        f"Storage /fsx/a on nodes 0, 1: {FULL}",
        "Storage /fsx/a works again on nodes 0, 1, after 1 m 01 s",
    ]


def test_with_another_tier_saves_go_there() -> None:
    log = Log(events=running_job())
    started = GenerationStarted(run="TrainFlow/7", nodes=2, world_size=2, tiers=["/fsx/a", "/backup/a"])
    log.events[0] = started.model_copy(update={"t": log.events[0].t})
    log.add(StorageBad(tier="/fsx/a", problem="no answer for 2.1 s", seconds=2.1), node=1)
    (shown,) = blocks(live_page(fold(log.events), CONFIG), Callout)
    assert shown.text == "Seen on node 1. Training continues; saves go to another tier."


def test_a_restart_in_place_keeps_what_is_known_and_a_new_attempt_does_not() -> None:
    log = Log(events=running_job())
    log.add(StorageBad(tier="/fsx/a", problem=FULL, seconds=0.1), node=1)
    log.add(NoticeSources(answering=["spot"]), node=0)
    started = next(e for e in log.events if isinstance(e, GenerationStarted))
    log.generation += 1
    log.add(started.model_copy(update={"parent_step": 85}), node=0)
    assert fold(log.events).storage_troubles[0].nodes == (1,)
    assert fold(log.events).notice_sources == {0: ("spot",)}
    log.generation += 1
    log.add(started.model_copy(update={"parent_step": 85, "attempt": 1}), node=0)
    assert fold(log.events).storage_troubles == ()
    assert fold(log.events).notice_sources == {}


def test_a_slow_node_stands_on_the_card_until_it_is_not_or_there_are_new_workers() -> None:
    log = Log(events=running_job())
    log.add(SlowNode(slow_node=1, share=0.42, seconds=12.0), node=0)
    (shown,) = blocks(live_page(fold(log.events), CONFIG), Callout)
    assert shown.title == "Node 1 is slow"
    assert shown.text.startswith("The others wait for it 42.0 % of their time.")
    assert lines(log)[-1] == "Node 1 is slow: the others wait for it 42.0 % of their time"
    log.add(SlowNode(slow_node=1, share=0.0, seconds=12.0), node=0)
    assert blocks(live_page(fold(log.events), CONFIG), Callout) == []
    assert lines(log)[-1] == "Node 1 is no longer slow"


def test_a_job_that_ended_has_no_present_troubles() -> None:
    log = Log(events=failed_job())
    before = blocks(final_page(fold(log.events), CONFIG), Callout)
    log.add(StorageBad(tier="/fsx/a", problem=FULL, seconds=0.1), node=1)
    log.add(SlowNode(slow_node=1, share=0.42, seconds=12.0), node=0)
    assert blocks(final_page(fold(log.events), CONFIG), Callout) == before


def test_a_machine_that_is_not_fit_is_named() -> None:
    log = Log(events=running_job())
    log.add(NodeChecked(seconds=0.2, matmul_tflops=0.1), rank=0)
    before = len(lines(log))
    log.add(NodeChecked(seconds=0.9, problem="a matrix product takes 8.0 times as long"), rank=1)
    assert lines(log)[before:] == ["Rank 1 on node 1 is not fit to train: a matrix product takes 8.0 times as long"]


def test_what_all_nodes_tell_is_one_line() -> None:
    log = Log(events=restarted_job())
    assert [line for line in lines(log) if "No worker is left" in line] == [
        "No worker is left on nodes 0, 1, within 100 ms"
    ]
    log.generation = log.events[-1].generation
    for node in range(64):
        log.add(NoticeSources(answering=[] if node == 7 else ["spot", "rebalance"]), node=node)
    assert lines(log)[-2:] == ["Notices on 63 nodes come from spot, rebalance", "No notice source on node 7"]


def test_what_happens_again_is_another_line() -> None:
    log = Log(events=running_job())
    before = len(lines(log))
    for _ in range(2):
        log.add(StorageBad(tier="/fsx/a", problem=FULL, seconds=0.1), node=1)
        log.wait(1.0)
    log.wait(TOGETHER_SECONDS)
    log.add(StorageBad(tier="/fsx/a", problem=FULL, seconds=0.1), node=0)
    assert lines(log)[before:] == [f"Storage /fsx/a on node {node}: {FULL}" for node in (1, 1, 0)]


def test_the_terminal_shows_it_too() -> None:
    log = Log(events=running_job())
    log.add(StorageBad(tier="/fsx/a", problem=FULL, seconds=0.1), node=1)
    log.add(NoticeSources(answering=[]), node=0)
    log.add(GangStopped(seconds=0.2), node=1)
    out = StringIO()
    show(final_page(fold(log.events), CONFIG), Console(file=out, width=160))
    for text in (f"Storage /fsx/a: {FULL}", "No notice source on node 0", "No worker is left on node 1, within 200 ms"):
        assert text in out.getvalue()


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([3], "node 3"),
        ([1, 0], "nodes 0, 1"),
        ([0, 1, 2, 3], "nodes 0 to 3"),
        ([0, 2, 5, 5], "nodes 0, 2, 5"),
        (range(0, 40, 2), "20 nodes"),
        (range(2, 70), "nodes 2 to 69"),
    ],
)
def test_nodes_are_named_as_long_as_one_can_read_it(nodes: list[int], words: str) -> None:
    assert nodes_in_words(nodes) == words
