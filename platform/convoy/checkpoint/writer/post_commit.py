"""The work of a writer process between saves: it copies commits to other tiers, reads them back, prunes.

Each tier has a thread for what is done to it, so that one that hangs or is slow holds up no other. They yield to a
save: the functions they call ask `pause` between chunks and files, which waits until none is under way.
"""

import contextlib
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from convoy.checkpoint.commits import CommitGoneError, read_commit
from convoy.checkpoint.format import Commit, DamagedCommitError
from convoy.checkpoint.messages import (
    Copied,
    PartVerified,
    PostCommitRequest,
    PostCommitTaskDone,
    Pruned,
    Report,
    WriterSetup,
)
from convoy.checkpoint.verify.commit import SuspectedError, verify_part
from convoy.checkpoint.verify.marks import verified_parts
from convoy.checkpoint.verify.second_host import settle_suspicions
from convoy.checkpoint.writer.copy import (
    CopyAbortedError,
    check_copy_failures,
    commit_copied_parts,
    copy_deadline_seconds,
    copy_part,
    write_copy_failure,
)
from convoy.checkpoint.writer.inbox import DueWork, Inbox
from convoy.checkpoint.writer.prune import prune
from convoy.checkpoint.writer.tiers import Tiers
from convoy.config.checkpoint import RetentionConfig
from convoy.config.errors import one_line
from convoy.job.lineage import CommitRef, parse_commits
from convoy.storage import Store, StoreUnavailable, StoreUnfit

T = TypeVar("T")

OPEN_SECONDS = 60.0
"""How long a tier may take to open and prove itself."""

COPY_PAUSES_SECONDS = (1.0, 5.0, 25.0)
"""Between two tries of a copy that the storage did not take: for a moment's trouble no commit goes without its copy."""

LOOK_SECONDS = (0.1, 5.0)
"""First and longest pause between two looks for a copy, by a writer that does not commit it."""


class PostCommitWork:
    def __init__(self, setup: WriterSetup, tiers: Tiers, inbox: Inbox, report: Callable[[Report], None]) -> None:
        self._uris = setup.tiers
        self._policy = RetentionConfig(keep_last=setup.keep_last, keep_every_steps=setup.keep_every_steps)
        self._tiers = tiers
        self._inbox = inbox
        self._report = report

    def run(self) -> None:
        """Serve the inbox until it is closed."""
        threads = [
            threading.Thread(target=self._serve, args=[u], name=f"post-commit {u}", daemon=True) for u in self._uris
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _serve(self, uri: str) -> None:
        while (due := self._inbox.take_due(uri)) is not None:
            self._do_due_work(uri, due)

    def _do_due_work(self, uri: str, due: DueWork) -> None:
        for request in due.read_back:
            if request.verify_part is not None:
                self._verify_and_report(request, uri, request.ref, request.verify_part)
            self._report(PostCommitTaskDone(task="reading_back", ref=request.ref, tier=uri))
        for request in due.copy:
            self._copy_and_report(request, uri)
            if request.verify_copies is not None:
                self._verify_newest_copy(request, uri, request.verify_copies)
            self._report(PostCommitTaskDone(task="copying", ref=request.ref, tier=uri))
        if due.prune is not None:
            self._prune(uri, due.prune)

    def _pause(self) -> bool:
        """Waits while a save is under way. False: what was begun is always to be ended."""
        self._inbox.wait_until_idle()
        return False

    def _copy_and_report(self, request: PostCommitRequest, uri: str) -> None:
        began = time.monotonic()

        def report(commit: Commit | None, error: str | None = None) -> None:
            copied, seconds = 0 if commit is None else commit.bytes, time.monotonic() - began
            self._report(Copied(ref=request.ref, to=uri, bytes=copied, seconds=seconds, error=error))

        try:
            commit = self._copy_share(request, uri)
            if commit is not None:
                report(commit)
            elif request.verify_copies is not None:
                self._retry(lambda: self._await_copy(request, uri))
        except CopyAbortedError as error:
            if request.writer == 0:  # who speaks for all
                report(None, one_line(error))
        except Exception as error:
            report(None, one_line(error))

    def _copy_share(self, request: PostCommitRequest, uri: str) -> Commit | None:
        """Copy this writer's part; as writer 0 then make the commit. Whoever cannot leaves a note: nobody need wait."""
        try:
            return self._retry(lambda: self._try_copy_share(request, uri))
        except CopyAbortedError:
            raise
        except Exception as error:
            with contextlib.suppress(Exception):  # then what ends the waiting is its deadline
                write_copy_failure(self._tiers.store(uri, 0), request.ref, request.writer, one_line(error))
            raise

    def _try_copy_share(self, request: PostCommitRequest, uri: str) -> Commit | None:
        source, target = self._tiers.store(request.tier, OPEN_SECONDS), self._tiers.store(uri, OPEN_SECONDS)
        check_copy_failures(target, request.ref)
        copy_part(source, target, request.ref, request.writer, stop=self._pause)
        return commit_copied_parts(source, target, request.ref, stop=self._pause) if request.writer == 0 else None

    def _await_copy(self, request: PostCommitRequest, uri: str) -> None:
        """Wait for writer 0, so that all writers read the same commit back: of several none would be read whole."""
        source, target = self._tiers.store(request.tier, OPEN_SECONDS), self._tiers.store(uri, OPEN_SECONDS)
        until, pause = time.monotonic() + copy_deadline_seconds(read_commit(source, request.ref)), LOOK_SECONDS[0]
        name = request.ref.name
        while name not in target.sizes(name) and time.monotonic() < until:
            check_copy_failures(target, request.ref)
            time.sleep(pause)
            pause = min(LOOK_SECONDS[1], 1.5 * pause)
            self._pause()

    def _verify_newest_copy(self, request: PostCommitRequest, uri: str, part: int) -> None:
        """Read back the newest commit that has come to a further tier: without, none could ever go from there."""
        with contextlib.suppress(StoreUnavailable, StoreUnfit):  # which copying there has reported
            store = self._tiers.store(uri, OPEN_SECONDS)
            there = [ref for ref in parse_commits(store.sizes("commits/")) if ref.generation == request.generation]
            newest = max(there, key=lambda ref: ref.step, default=None)
            if newest is not None and part not in verified_parts(store, newest):
                self._verify_and_report(request, uri, newest, part)

    def _verify_and_report(self, request: PostCommitRequest, uri: str, ref: CommitRef, part: int) -> None:
        began, problem, damaged = time.monotonic(), None, False
        host = request.hosts[request.writer] if len(set(request.hosts)) > 1 else ""
        try:
            store = self._tiers.store(uri, OPEN_SECONDS)
            if host:
                self._settle_suspicions(request, uri, store)
            verify_part(store, ref, part, request.drop_cache, host=host, stop=self._pause)
        except Exception as error:
            no_mark = isinstance(error, CommitGoneError | SuspectedError)  # pruned meanwhile; or one host's word
            problem, damaged = one_line(error), isinstance(error, DamagedCommitError) and not no_mark
        seconds = time.monotonic() - began
        self._report(PartVerified(ref=ref, tier=uri, part=part, seconds=seconds, error=problem, damaged=damaged))

    def _settle_suspicions(self, request: PostCommitRequest, uri: str, store: Store) -> None:
        """Read what other hosts suspect. Whatever comes of it, this rank's own part is read then."""
        began = time.monotonic()
        with contextlib.suppress(StoreUnavailable):  # which reading the own part reports
            for settled in settle_suspicions(store, request.writer, request.hosts, stop=self._pause):
                about = PartVerified(ref=settled.ref, tier=uri, part=settled.part, seconds=time.monotonic() - began)
                changes = {"error": settled.error, "misread_by": settled.misread_by, "damaged": settled.damaged}
                self._report(about.model_copy(update=changes))
                if settled.misread_by:
                    self._report(about)
                began = time.monotonic()

    def _prune(self, uri: str, generation: int) -> None:
        try:
            store, root = self._tiers.store(uri, OPEN_SECONDS), self._tiers.root()
            if root is None:
                raise StoreUnavailable("the root is out of reach, whose generations decide what may go")
            over, own = self._inbox.abandoned_attempts(), root.uri == store.uri
            self._report(
                prune(store, generation, self._policy, root=None if own else root, failed=over, stop=self._pause)
            )
        except Exception as error:
            self._report(Pruned(tier=uri, commits=[], error=one_line(error)))

    def _retry(self, work: Callable[[], T]) -> T:
        """Retry work that fails by the storage, several times; once where the process is to end."""
        for pause in COPY_PAUSES_SECONDS:
            with contextlib.suppress(OSError):
                return work()
            if self._inbox.wait_until_closing(pause):
                time.sleep(COPY_PAUSES_SECONDS[0])
                break
        return work()
