"""What a writer process does between saves, in one thread: copies commits to other tiers, reads them back, prunes.

It yields to a save: the functions it calls ask `pause` between chunks and files, which waits until none is under way.
"""

import contextlib
import time
from collections.abc import Callable

from convoy.checkpoint.commits import CommitGoneError
from convoy.checkpoint.copy import commit_copy, copy_part
from convoy.checkpoint.errors import one_line
from convoy.checkpoint.format import DamagedCommitError
from convoy.checkpoint.inbox import Inbox
from convoy.checkpoint.marks import verified_parts
from convoy.checkpoint.messages import AfterCommit, Copied, PartVerified, Pruned, Report, WriterSetup
from convoy.checkpoint.prune import prune
from convoy.checkpoint.tiers import Tiers
from convoy.checkpoint.verify import verify_part
from convoy.config.checkpoint import RetentionConfig
from convoy.job.lineage import CommitRef, parse_commits
from convoy.storage import StoreUnavailable, StoreUnfit

OPEN_SECONDS = 60.0
"""How long a tier may take to open and prove itself."""

COPY_SECONDS = 900.0
"""How long writer 0 waits for the other writers' copies."""


class Housekeeping:
    def __init__(self, setup: WriterSetup, tiers: Tiers, inbox: Inbox, report: Callable[[Report], None]) -> None:
        self._policy = RetentionConfig(keep_last=setup.keep_last, keep_every_steps=setup.keep_every_steps)
        self._tiers = tiers
        self._inbox = inbox
        self._report = report

    def run(self) -> None:
        """Serve the inbox until it is closed."""
        while (request := self._inbox.next_after_commit()) is not None:
            for target in request.copy_to:
                self._copy(request, target)
            if request.verify_part is not None:
                self._verify(request, request.tier, request.ref, request.verify_part)
                for target in request.copy_to:
                    self._verify_copy(request, target, request.verify_part)
            if request.prune:
                for tier in [request.tier, *request.copy_to]:
                    self._prune(request, tier)

    def _pause(self) -> bool:
        """Waits while a save is under way. False: what was begun is always to be ended."""
        self._inbox.wait_until_idle()
        return False

    def _copy(self, request: AfterCommit, uri: str) -> None:
        began = time.monotonic()
        try:
            source, target = self._tiers.store(request.tier, OPEN_SECONDS), self._tiers.store(uri, OPEN_SECONDS)
            copy_part(source, target, request.ref, request.writer, stop=self._pause)
            if request.writer == 0:
                commit = commit_copy(source, target, request.ref, COPY_SECONDS, stop=self._pause)
                seconds = time.monotonic() - began
                self._report(Copied(ref=request.ref, to=uri, bytes=commit.bytes, seconds=seconds))
        except Exception as error:
            self._report(Copied(ref=request.ref, to=uri, seconds=time.monotonic() - began, error=one_line(error)))

    def _verify_copy(self, request: AfterCommit, uri: str, part: int) -> None:
        """Read back the newest commit that has come to a further tier: without, none could ever go from there."""
        with contextlib.suppress(StoreUnavailable, StoreUnfit):  # which copying there has told
            store = self._tiers.store(uri, OPEN_SECONDS)
            there = [ref for ref in parse_commits(store.sizes("commits/")) if ref.generation == request.generation]
            newest = max(there, key=lambda ref: ref.step, default=None)
            if newest is not None and part not in verified_parts(store, newest):
                self._verify(request, uri, newest, part)

    def _verify(self, request: AfterCommit, uri: str, ref: CommitRef, part: int) -> None:
        began, problem, damaged = time.monotonic(), None, False
        try:
            store = self._tiers.store(uri, OPEN_SECONDS)
            verify_part(store, ref, part, request.drop_cache, stop=self._pause)
        except Exception as error:
            gone = isinstance(error, CommitGoneError)  # pruned meanwhile
            problem, damaged = one_line(error), isinstance(error, DamagedCommitError) and not gone
        seconds = time.monotonic() - began
        self._report(PartVerified(ref=ref, tier=uri, part=part, seconds=seconds, error=problem, damaged=damaged))

    def _prune(self, request: AfterCommit, uri: str) -> None:
        try:
            store, root = self._tiers.store(uri, OPEN_SECONDS), self._tiers.root()
            if root is None:
                raise StoreUnavailable("the root is out of reach, whose generations decide what may go")
            self._report(prune(store, request.generation, self._policy, root=root, stop=self._pause))
        except Exception as error:
            self._report(Pruned(tier=uri, commits=[], error=one_line(error)))
