"""What an agent watches besides its workers and the other agents: notices, the tiers, lost GPUs, samples of the
hardware."""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from queue import Empty
from typing import TypeVar

from convoy.gang.async_call import BackgroundCall, say
from convoy.gang.diagnosis.node_health import DRIVER_SECONDS, query_gpu_problem
from convoy.gang.diagnosis.storage_probe import StorageProbe, TierChange
from convoy.gang.messages import Evidence, own_evidence
from convoy.gang.notices.notice import Notice, Poller, SourceStatus, ending_evidence, order_for, strongest_order
from convoy.gang.notices.sources import may_have_metadata
from convoy.gang.telemetry.sampler import HardwareSampler
from convoy.gang.workers.board import Mark, OrderKind
from convoy.gang.workers.worker_group import NodeContext, WorkerGroup
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import UNFIT, NoticeReceived, NoticeSources, StorageBad, StorageGood
from convoy.storage import StoreUnavailable

FIRST_ROUND_SECONDS = 30.0
"""For every source of notices to be polled once."""

T = TypeVar("T")


class NodeMonitor:
    """Used by one thread; nothing here waits."""

    def __init__(self, context: NodeContext, poller: Poller, probe: StorageProbe, sampler: HardwareSampler) -> None:
        self._context, self._poller, self._probe, self._sampler = context, poller, probe, sampler
        self._node = context.node.index
        self._sources: BackgroundCall[list[SourceStatus]] | None = BackgroundCall(
            "sources", poller.await_first_round, FIRST_ROUND_SECONDS
        )
        self._order: OrderKind = "none"
        """Of this node, for a notice of its own."""
        self._gpus: BackgroundCall[str] | None = None
        self.begin_generation()

    def begin_generation(self) -> None:
        """Workers are about to start: check the GPUs again meanwhile."""
        self._gpus = BackgroundCall("GPUs", lambda: query_gpu_problem(os.environ), 2 * DRIVER_SECONDS)

    def collect_evidence(self, now: float, workers: WorkerGroup | None, log: EventWriter) -> list[Evidence]:
        """The evidence since the last call, which is also logged and passed to the workers. log: of the newest
        generation. Call it a few times per second."""
        self._report_sources(log)
        notices = take_queued(self._poller.notices.get_nowait)
        evidence = [item for notice in notices for item in self._act_on(notice, now, workers, log)]
        evidence += self._check_gpus(now)
        evidence += [item for change in self._probe.take_changes(now) for item in self._report_tier(change, now, log)]
        if workers is not None:
            workers.set_unusable_tiers(self._probe.unusable_tiers)
        for event in self._sampler.take_events():
            log.append(event)
        return evidence

    def log_last_samples(self, log: EventWriter) -> None:
        """The gang ends: log the samples for which no event was due."""
        for event in self._sampler.take_rest():
            log.append(event)

    def _check_gpus(self, now: float) -> list[Evidence]:
        """A lost or broken GPU is named before its workers fail on it."""
        if self._gpus is None or not self._gpus.is_over:
            return []
        check, self._gpus = self._gpus, None
        with contextlib.suppress(StoreUnavailable):  # no answer in time says nothing about the GPUs
            if problem := check.result():
                return [own_evidence("agent", self._node, now, exit_code=UNFIT, reason=problem)]
        return []

    def _report_sources(self, log: EventWriter) -> None:
        if self._sources is None or not self._sources.is_over:
            return
        statuses, self._sources = self._sources.result(), None
        answering = [s.source for s in statuses if s.answers and s.foretells]
        if not answering and self._context.node.shares_host and not may_have_metadata(os.environ):
            return  # a machine of one's own is expected to have no source
        log.append(NoticeSources(answering=answering))
        self._say(f"notices of its machine's end come from {', '.join(answering)}" if answering else "no notice source")

    def _act_on(self, notice: Notice, now: float, workers: WorkerGroup | None, log: EventWriter) -> list[Evidence]:
        """Order this node's workers to vote for what the notice needs: their vote is enough for all."""
        marks: list[Mark] = [] if workers is None else list(workers.marks().values())
        step_seconds = max((mark.step_seconds for mark in marks), default=0.0)
        save_seconds = max((mark.save_seconds for mark in marks), default=0.0)
        wall, config = time.time(), self._context.task.config.notices
        script = self._context.task.script is not None
        unsaved = step_seconds > 0 or script  # a script may save when it likes, without reporting it
        if script and notice.deadline is None and not any(mark.polls_orders for mark in marks):
            # The script may never receive it.
            notice = replace(notice, deadline=wall + config.deadline_seconds)
        kind = order_for(notice, config, save_seconds, step_seconds, wall, unsaved=unsaved)
        log.append(
            NoticeReceived(
                source=notice.source, notice=notice.kind, action=kind, deadline=notice.deadline, text=notice.text
            )
        )
        self._order = strongest_order([self._order, kind])
        if workers is not None and kind != "none":
            workers.give_order(self._order)
        if kind not in ("save_and_end", "end"):
            return []
        return [ending_evidence(notice, self._node, now, wall, worth_waiting=unsaved)]

    def _report_tier(self, change: TierChange, now: float, log: EventWriter) -> list[Evidence]:
        """Other agents need to know about the root alone; the other tiers are reported to people."""
        available = not change.problem
        if available:
            log.append(StorageGood(tier=change.uri, seconds=change.seconds))
            self._say(f"{change.uri}: takes and gives bytes again, after {change.seconds:.1f} s")
        else:
            log.append(StorageBad(tier=change.uri, problem=change.problem, seconds=change.seconds))
            self._say(f"{change.uri}: {change.problem}; training continues")
        if change.tier > 0:
            return []
        at = now if available else now - change.seconds
        return [own_evidence("store", self._node, now, at=at, ok=available, reason=change.problem)]

    def _say(self, text: str) -> None:
        say(f"convoy: node {self._node}: {text}")


def take_queued(take: Callable[[], T]) -> list[T]:
    """What a queue holds now."""
    items = []
    while True:
        try:
            items.append(take())
        except Empty:
            return items
