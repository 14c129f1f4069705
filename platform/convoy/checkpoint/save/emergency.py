"""An emergency save: written before the call returns, by the ranks that are left, without a word between them."""

import time
from collections.abc import Sequence

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import Commit
from convoy.checkpoint.messages import Committed, PartWritten, SaveFailed, WriterSetup
from convoy.checkpoint.save.commit_lookup import CommitLookup, LookupResult
from convoy.checkpoint.save.engine import StagedPart
from convoy.checkpoint.save.writer_client import GRACE_SECONDS, WriterProcess
from convoy.config.errors import one_line
from convoy.storage import Store

HANGS = "the writer process hangs"
UNHEARD = "nothing was heard of its commit"
PAUSE_SECONDS = 0.01
LOOKUP_SECONDS = 0.2


def emergency_save(
    setup: WriterSetup,
    stores: Sequence[Store],
    staged: StagedPart,
    draft: Commit,
    *,
    attempt: str,
    writer: int,
    writers: int,
    deadline_seconds: float,
) -> Commit:
    """Write a part and have it committed, on the first tier that takes it; writer 0 commits.

    attempt: a name that all writers give this save and nothing else. deadline_seconds: on each tier. Raises
    CheckpointError. A process of its own writes, whatever the usual one may be stuck in, and another where that hangs.
    """
    processes, lookup, began = [_start_writer(setup, staged)], CommitLookup(stores), time.monotonic()
    longest = deadline_seconds + GRACE_SECONDS
    try:
        errors = list[str]()
        for tier in range(len(stores)):
            name = f"{attempt}-{tier}"
            uri = setup.tiers[tier]
            processes[-1].send(
                staged.to_request(draft, name, uri, writer=writer, writers=writers, deadline_seconds=deadline_seconds)
            )
            # Writer 0 comes to a tier later than a writer whose part failed at once on those before.
            deadlines = time.monotonic() + longest, began + (tier + 1) * longest + GRACE_SECONDS
            result = _await_commit(processes[-1], lookup, tier, draft, name, writer, deadlines)
            if isinstance(result, Commit):
                return result
            errors.append(result)
            if tier + 1 < len(stores) and (result == HANGS or not processes[-1].alive()):
                processes.append(_start_writer(setup, staged))
        became = "may not be saved" if UNHEARD in errors else "was not saved"
        raise CheckpointError(f"step {draft.step} {became}: {'; then '.join(errors)}")
    finally:
        for process in processes:
            process.abandon()


def _start_writer(setup: WriterSetup, staged: StagedPart) -> WriterProcess:
    process = WriterProcess(setup, urgent=True)
    process.start()
    process.send(staged.layout)
    return process


def _await_commit(
    process: WriterProcess,
    lookup: CommitLookup,
    tier: int,
    draft: Commit,
    name: str,
    writer: int,
    deadlines: tuple[float, float],
) -> Commit | str:
    """The commit, or why there is none. deadlines: when the part must be written, and the commit heard of."""
    written = False
    while time.monotonic() < deadlines[written]:
        alive = process.alive()
        for report in process.poll():
            match report:
                case Committed() if report.attempt == name:
                    return report.commit
                case SaveFailed() if report.attempt == name:
                    return report.error
                case PartWritten() if report.attempt == name:
                    written = writer > 0
        if written and (result := _poll_lookup(lookup, tier, draft, name)) is not None:
            return result
        if not alive and not written:
            return "the writer process ended"
        time.sleep(LOOKUP_SECONDS if written else PAUSE_SECONDS)
    return UNHEARD if written else HANGS


def _poll_lookup(lookup: CommitLookup, tier: int, draft: Commit, name: str) -> LookupResult:
    """The result of the last look-up; the next one is begun."""
    try:
        result = lookup.take_result(tier, name)
    except Exception as error:
        return one_line(error)
    if result is None:
        lookup.begin(tier, draft.ref, name)
    return result
