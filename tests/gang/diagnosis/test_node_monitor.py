"""What an agent makes of notices, of tiers in trouble and of GPUs that are gone."""

import time
from collections.abc import Sequence
from dataclasses import replace
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from convoy.config.train import NoticesConfig
from convoy.gang.diagnosis import node_monitor
from convoy.gang.diagnosis.node_monitor import NodeMonitor
from convoy.gang.diagnosis.storage_probe import StorageProbe, TierChange
from convoy.gang.messages import Evidence
from convoy.gang.notices.notice import Notice, Poller, SourceStatus
from convoy.gang.telemetry.sampler import HardwareSampler
from convoy.gang.workers.board import Mark
from convoy.gang.workers.worker_group import NodeContext, WorkerGroup
from convoy.job.events.hardware import HardwareSampled
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import UNFIT, Event, NoticeReceived, NoticeSources, StorageBad, StorageGood
from tests.gang.tasks import wait_for

NODE = 2
TRAINS = Mark("step", 41, 1, 0.0, step_seconds=0.2, save_seconds=1.0)


class Here:
    """An agent's surroundings, and what it made of them."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        standings: Sequence[SourceStatus] = (),
        gpu: str = "",
        *,
        shares_host: bool = False,
    ) -> None:
        self.events: list[Event] = []
        self.samples: list[HardwareSampled] = []
        self.orders: list[str] = []
        self.unusable_tiers: frozenset[int] = frozenset()
        self.told_away: list[frozenset[int]] = []
        self.found: list[TierChange] = []
        self.notices: SimpleQueue[Notice] = SimpleQueue()
        self.asked_gpus = 0

        def query_gpu_problem(environ: Any) -> str:
            self.asked_gpus += 1
            return gpu

        monkeypatch.setattr(node_monitor, "query_gpu_problem", query_gpu_problem)
        config = SimpleNamespace(notices=NoticesConfig())
        node = SimpleNamespace(index=NODE, shares_host=shares_host)
        site = SimpleNamespace(node=node, task=SimpleNamespace(config=config, script=None))
        poller = SimpleNamespace(await_first_round=lambda: list(standings), notices=self.notices)
        sampler = SimpleNamespace(take_events=self._take_samples, take_rest=self._take_samples)
        self.seen = NodeMonitor(
            cast(NodeContext, site),
            cast(Poller, poller),
            cast(StorageProbe, self),
            cast(HardwareSampler, sampler),
        )

    def _take_samples(self) -> list[HardwareSampled]:
        taken, self.samples = self.samples, []
        return taken

    def take_changes(self, now: float) -> list[TierChange]:
        found, self.found = self.found, []
        return found

    def append(self, event: Event) -> None:
        self.events.append(event)

    def look(self, mark: Mark | None = TRAINS) -> list[Evidence]:
        """mark: where the node's only worker is; None: there is none."""
        orders, tiers = self.orders.append, self.told_away.append
        team = SimpleNamespace(marks=lambda: {NODE: mark}, give_order=orders, set_unusable_tiers=tiers)
        log = cast(EventWriter, self)
        return self.seen.collect_evidence(time.monotonic(), None if mark is None else cast(WorkerGroup, team), log)

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Here:
    return Here(monkeypatch)


def spot(seconds: float = 120.0) -> Notice:
    return Notice("spot", "end", time.time() + seconds, "EC2 will terminate this spot instance")


def test_only_what_foretells_the_machine_s_end_is_a_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deaf = [SourceStatus("spot", True, False, "no answer"), SourceStatus("sigterm", False, True, "")]
    here = Here(monkeypatch, deaf)
    wait_for("the sources", lambda: here.look() or here.of(NoticeSources))
    assert [e.answering for e in here.of(NoticeSources)] == [[]]
    hears = Here(monkeypatch, [*deaf, SourceStatus("rebalance", True, True, "")])
    wait_for("the sources", lambda: hears.look() or hears.of(NoticeSources))
    assert [e.answering for e in hears.of(NoticeSources)] == [["rebalance"]]
    hears.look()
    assert len(hears.of(NoticeSources)) == 1
    assert capsys.readouterr().out == (
        "convoy: node 2: no notice source\nconvoy: node 2: notices of its machine's end come from rebalance\n"
    )


@pytest.mark.parametrize(("instance", "told"), [(False, []), (True, [[]])])
def test_no_source_is_told_only_where_there_might_be_one(
    instance: bool, told: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(node_monitor, "may_have_metadata", lambda environ: instance)
    here = Here(monkeypatch, [SourceStatus("spot", True, False, "no answer")], shares_host=True)
    wait_for("the sources", lambda: here.look() or here.seen._sources is None)
    assert [e.answering for e in here.of(NoticeSources)] == told
    assert ("no notice source" in capsys.readouterr().out) == instance


def test_a_notice_with_time_for_a_save_is_an_order_a_sign_and_an_event(here: Here) -> None:
    here.notices.put(spot())
    (sign,) = here.look()
    assert (sign.kind, sign.node, here.orders) == ("notice", NODE, ["save_and_end"])
    assert sign.deadline is not None
    ((seen),) = here.of(NoticeReceived)
    assert (seen.source, seen.action) == ("spot", "save_and_end")


def test_a_recommendation_is_an_order_and_no_sign_and_never_weakens_one(here: Here) -> None:
    rebalance = Notice("rebalance", "rebalance", None, "EC2 recommends to leave")
    here.notices.put(rebalance)
    assert here.look() == []
    here.notices.put(spot())
    assert len(here.look()) == 1
    here.notices.put(rebalance)
    assert here.look() == []
    assert here.orders == ["save", "save_and_end", "save_and_end"]


def test_without_workers_a_notice_ends_the_attempt_and_nobody_is_ordered(here: Here) -> None:
    here.notices.put(spot())
    (sign,) = here.look(mark=None)
    assert (sign.kind, here.orders) == ("notice", [])


def test_the_root_in_trouble_is_a_sign_and_a_line_and_then_it_is_well(
    here: Here, capsys: pytest.CaptureFixture[str]
) -> None:
    here.found = [TierChange(0, "/fsx/a", "no answer for 2.1 s", 2.1)]
    (sign,) = here.look()
    assert (sign.kind, sign.node, sign.ok, sign.reason) == ("store", NODE, False, "no answer for 2.1 s")
    assert sign.noticed - sign.at == pytest.approx(2.1)
    here.found = [TierChange(0, "/fsx/a", "", 12.0)]
    (sign,) = here.look()
    assert (sign.kind, sign.ok) == ("store", True)
    assert [(e.tier, e.problem) for e in here.of(StorageBad)] == [("/fsx/a", "no answer for 2.1 s")]
    assert [(e.tier, e.seconds) for e in here.of(StorageGood)] == [("/fsx/a", 12.0)]
    assert [line for line in capsys.readouterr().out.splitlines() if "/fsx" in line] == [
        "convoy: node 2: /fsx/a: no answer for 2.1 s; training continues",
        "convoy: node 2: /fsx/a: takes and gives bytes again, after 12.0 s",
    ]


def test_a_further_tier_in_trouble_is_told_and_no_sign(here: Here) -> None:
    here.found = [TierChange(1, "/backup/a", "No space left on device", 0.0)]
    assert here.look() == []
    assert [e.tier for e in here.of(StorageBad)] == ["/backup/a"]


def test_the_workers_are_told_which_tiers_are_away(here: Here) -> None:
    here.look()
    here.unusable_tiers = frozenset({0, 1})
    here.look()
    here.look(mark=None)
    assert here.told_away == [frozenset(), {0, 1}]


def test_a_gpu_that_is_gone_is_a_sign_of_a_machine_that_is_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Here(monkeypatch, gpu="GPU is lost.")
    signs: list[Evidence] = []
    wait_for("the GPU", lambda: signs or signs.extend(here.look()) or signs)
    (sign,) = signs
    assert (sign.kind, sign.exit_code, sign.node, sign.reason) == ("agent", UNFIT, NODE, "GPU is lost.")
    assert here.look() == []
    here.seen.begin_generation()
    wait_for("the next look", lambda: here.look())
    assert here.asked_gpus == 2


@pytest.mark.parametrize(("asks", "waits_for_ever"), [(False, False), (True, True)])
def test_a_drained_script_that_never_asks_for_notices_is_ended_in_time(
    asks: bool, waits_for_ever: bool, here: Here
) -> None:
    """Its steps tell that it runs, and not that it hears."""
    here.seen._context.task.script = "a script"  # type: ignore[assignment,misc]
    here.notices.put(Notice("drain", "end", None, "convoy drain"))
    (sign,) = here.look(replace(TRAINS, polls_orders=asks))
    assert (sign.deadline is None) == waits_for_ever


def test_samples_of_the_hardware_are_logged_when_they_are_due_and_at_the_end(here: Here) -> None:
    first, second = (
        HardwareSampled(
            seconds=seconds, samples=1, cpu=0.5, memory_bytes=1, memory_total_bytes=2, sent_bytes_per_second=0,
            received_bytes_per_second=0,
        )
        for seconds in (5.0, 3.0)
    )  # fmt: skip
    here.samples = [first]
    here.look()
    here.look()
    assert here.of(HardwareSampled) == [first]
    here.samples = [second]
    here.seen.log_last_samples(cast(EventWriter, here))
    assert here.of(HardwareSampled) == [first, second]
