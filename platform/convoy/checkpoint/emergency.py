"""An emergency save: written before the call returns, by the ranks that are left, without a word between them."""

import time
from collections.abc import Sequence

from convoy.checkpoint.engine import Apart
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import Commit, DamagedCommitError
from convoy.checkpoint.link import GRACE_SECONDS
from convoy.checkpoint.messages import Committed, PartWritten, SaveFailed, WritePart, WriterSetup
from convoy.checkpoint.saves import find_commit
from convoy.checkpoint.writer_process import WriterProcess
from convoy.storage import Store, StoreUnavailable

PAUSE_SECONDS = 0.01
LOOK_SECONDS = 0.2


def save_now(
    setup: WriterSetup,
    stores: Sequence[Store],
    staged: Apart,
    draft: Commit,
    *,
    attempt: str,
    writer: int,
    writers: int,
    deadline_seconds: float,
) -> Commit:
    """Write a part and have it committed, on the first tier that takes it; writer 0 commits.

    attempt: a name that all writers give this save and nothing else. deadline_seconds: on each tier. Raises
    CheckpointError. A process of its own writes, whatever the usual one may be stuck in.
    """
    process = WriterProcess(setup)
    process.start()
    try:
        process.send(staged.layout)
        errors = list[str]()
        for tier, store in enumerate(stores):
            name = f"{attempt}-{tier}"
            process.send(_request(setup, tier, staged, draft, name, writer, writers, deadline_seconds))
            found = _settled(process, store, draft, name, writer, deadline_seconds + GRACE_SECONDS)
            if isinstance(found, Commit):
                return found
            errors.append(found)
        raise CheckpointError(f"step {draft.step} was not saved: {'; then '.join(errors)}")
    finally:
        process.abandon()


def _request(
    setup: WriterSetup, tier: int, staged: Apart, draft: Commit, name: str, writer: int, writers: int, seconds: float
) -> WritePart:
    whole = draft.model_copy(update={"attempt": name, "tensors": staged.tensors})
    return WritePart(
        tier=setup.tiers[tier],
        buffer=staged.buffer,
        generation=draft.generation,
        step=draft.step,
        attempt=name,
        writer=writer,
        writers=writers,
        values=staged.values,
        draft=whole if writer == 0 else None,
        deadline_seconds=seconds,
    )


def _settled(
    process: WriterProcess, store: Store, draft: Commit, name: str, writer: int, seconds: float
) -> Commit | str:
    """The commit, or why there is none."""
    until, written = time.monotonic() + seconds, False
    while time.monotonic() < until:
        alive = process.alive()
        for report in process.poll():
            match report:
                case Committed() if report.attempt == name:
                    return report.commit
                case SaveFailed() if report.attempt == name:
                    return report.error
                case PartWritten() if report.attempt == name:
                    written = writer > 0
        if written and (found := _looked_up(store, draft, name)) is not None:
            return found
        if not alive and not written:
            return "the writer process ended"
        time.sleep(LOOK_SECONDS if written else PAUSE_SECONDS)
    return "it was not committed in time"


def _looked_up(store: Store, draft: Commit, name: str) -> Commit | str | None:
    try:
        return find_commit(store, draft.ref, name)
    except (StoreUnavailable, DamagedCommitError):
        return None
