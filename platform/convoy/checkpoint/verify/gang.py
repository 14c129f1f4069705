"""A commit read back by all ranks of a gang, each a share of its parts, with one outcome for all."""

from convoy.checkpoint.commits import CommitGoneError, read_commit
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import DamagedCommitError
from convoy.checkpoint.verify.commit import read_whole
from convoy.checkpoint.verify.marks import dismiss, suspicions
from convoy.checkpoint.verify.verdicts import Outcome, Readers, Verdict
from convoy.config.errors import ConfigError
from convoy.job.lineage import CommitRef
from convoy.storage import Store, StoreUnavailable


def verify_together(store: Store, tier: int, ref: CommitRef, readers: Readers, threads: int) -> int:
    """Read every byte of a commit on a tier, and mark it as verified: how many bytes, by all ranks.

    Damage is marked once a rank of another host finds it too, where there is one; a commit that is whole is suspected
    no more. Raises on all ranks alike: DamagedCommitError (CommitGoneError: it was pruned), ConfigError for another
    format, StoreUnavailable, also where one host reads what another finds whole otherwise, and CheckpointError.
    """
    with readers.reading(store, ref):
        answer = readers.tried(lambda: len(read_commit(store, ref).parts)) if readers.rank == 0 else None
        verdict, parts = readers.first(answer)
        _raise_unless_done(readers.judged(ref, tier, [verdict], data=False)[0])
        share = range(readers.rank, parts, readers.size)
        verdict, count = readers.tried(
            lambda: sum(read_whole(store, ref, part, drop_cache=True, threads=threads) for part in share)
        )
        told = readers.everyones((verdict, count))
        _raise_unless_done(readers.judged(ref, tier, [verdict for verdict, _ in told], data=True)[0])
        settled = readers.tried(lambda: dismiss(store, *suspicions(store, ref))) if readers.rank == 0 else None
        _raise_unless_done(readers.first(settled)[0])
    return sum(count for _, count in told)


def _raise_unless_done(verdict: Verdict) -> None:
    errors: dict[Outcome, type[Exception]] = {
        Outcome.DAMAGED: DamagedCommitError,
        Outcome.GONE: CommitGoneError,
        Outcome.UNAVAILABLE: StoreUnavailable,
        Outcome.REFUSED: ConfigError,
        Outcome.BROKEN: CheckpointError,
    }
    if verdict.outcome in errors:
        raise errors[verdict.outcome](verdict.error)
