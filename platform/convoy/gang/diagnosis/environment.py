"""What an agent sees besides its workers and the other agents: notices, how the tiers are, whether a GPU is gone."""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace
from queue import Empty
from typing import TypeVar

from convoy.gang.async_call import Background
from convoy.gang.diagnosis.gpu_health import ASK_SECONDS, gpu_problem
from convoy.gang.diagnosis.storage_probe import Change, Probe
from convoy.gang.evidence import Sign
from convoy.gang.notices.machine import has_metadata
from convoy.gang.notices.notice import Notice
from convoy.gang.notices.notice_policy import decide, ending_sign, strongest
from convoy.gang.notices.poller import Poller, Standing
from convoy.gang.say import say
from convoy.gang.workers.board import Mark, OrderKind
from convoy.gang.workers.worker_group import Site, Team
from convoy.job.events.log import EventWriter
from convoy.job.events.types import UNFIT, NoticeReceived, NoticeSources, StorageBad, StorageGood
from convoy.storage import StoreUnavailable

FIRST_ROUND_SECONDS = 30.0
"""For every source of notices to be asked once."""

T = TypeVar("T")


class Surroundings:
    """Used by one thread; nothing here waits."""

    def __init__(self, site: Site, poller: Poller, probe: Probe) -> None:
        self._site, self._poller, self._probe = site, poller, probe
        self._sources: Background[list[Standing]] | None = Background(
            "sources", poller.first_round, FIRST_ROUND_SECONDS
        )
        self._ordered: OrderKind = "none"
        """By this node, for a notice of its own."""
        self._gpus: Background[str] | None = None
        self.begin()

    def begin(self) -> None:
        """Workers are to start: look at the GPUs anew, meanwhile."""
        self._gpus = Background("GPUs", lambda: gpu_problem(os.environ), 2 * ASK_SECONDS)

    def look(self, now: float, team: Team | None, log: EventWriter) -> list[Sign]:
        """What was seen since the last call, which is also told in the log and to the workers. log: of the newest
        generation. To be called a few times per second."""
        self._tell_sources(log)
        signs = [
            sign for notice in _all(self._poller.notices.get_nowait) for sign in self._heed(notice, now, team, log)
        ]
        signs += self._unfit(now)
        signs += [sign for change in self._probe.changes(now) for sign in self._tell(change, now, log)]
        if team is not None:
            team.away(self._probe.away)
        return signs

    def _unfit(self, now: float) -> list[Sign]:
        """A GPU that is gone or broken is named, before what its workers make of it."""
        if self._gpus is None or not self._gpus.over:
            return []
        asked, self._gpus = self._gpus, None
        with contextlib.suppress(StoreUnavailable):  # no answer in time says nothing of the GPUs
            if problem := asked.result():
                node = self._site.node.index
                return [Sign(kind="agent", node=node, by=node, at=now, seen=now, exit_code=UNFIT, reason=problem)]
        return []

    def _tell_sources(self, log: EventWriter) -> None:
        if self._sources is None or not self._sources.over:
            return
        standings, self._sources = self._sources.result(), None
        answering = [s.source for s in standings if s.answers and s.foretells]
        if not answering and self._site.node.shares_host and not has_metadata(os.environ):
            return  # no source is what to expect of a machine of one's own
        log.append(NoticeSources(answering=answering))
        self._say(f"notices of its machine's end come from {', '.join(answering)}" if answering else "no notice source")

    def _heed(self, notice: Notice, now: float, team: Team | None, log: EventWriter) -> list[Sign]:
        """This node's workers' vote is enough for all."""
        marks: list[Mark] = [] if team is None else list(team.marks().values())
        step_seconds = max((mark.step_seconds for mark in marks), default=0.0)
        save_seconds = max((mark.save_seconds for mark in marks), default=0.0)
        wall, config = time.time(), self._site.task.config.notices
        script = self._site.task.script is not None
        unsaved = step_seconds > 0 or script  # which may save when it likes, and tells nobody
        if script and notice.deadline is None and not any(mark.asks for mark in marks):  # nor perhaps hears of it
            notice = replace(notice, deadline=wall + config.deadline_seconds)
        kind = decide(notice, config, save_seconds, step_seconds, wall, unsaved=unsaved)
        seen = NoticeReceived(
            source=notice.source, notice=notice.kind, action=kind, deadline=notice.deadline, text=notice.text
        )
        log.append(seen)
        self._ordered = strongest([self._ordered, kind])
        if team is not None and kind != "none":
            team.order(self._ordered)
        if kind not in ("save_and_end", "end"):
            return []
        return [ending_sign(notice, self._site.node.index, now, wall, worth_waiting=unsaved)]

    def _tell(self, change: Change, now: float, log: EventWriter) -> list[Sign]:
        """Only of the root the others need to know: the rest is for people."""
        if change.well:
            log.append(StorageGood(tier=change.uri, seconds=change.seconds))
            self._say(f"{change.uri}: takes and gives bytes again, after {change.seconds:.1f} s")
        else:
            log.append(StorageBad(tier=change.uri, problem=change.problem, seconds=change.seconds))
            self._say(f"{change.uri}: {change.problem}; training goes on")
        if change.tier > 0:
            return []
        node = self._site.node.index
        at = now if change.well else now - change.seconds
        return [Sign(kind="store", node=node, by=node, at=at, seen=now, ok=change.well, reason=change.problem)]

    def _say(self, text: str) -> None:
        say(f"convoy: node {self._site.node.index}: {text}")


def _all(take: Callable[[], T]) -> list[T]:
    """What a queue has now."""
    found = []
    while True:
        try:
            found.append(take())
        except Empty:
            return found
