"""Removing what retention no longer needs, on one tier. Only for the newest generation of the job.

Of a commit its object goes first, then its files: what has no commit does not exist for readers. A reader takes a
lease before it looks for the commit; here the commit is removed before the leases are looked at once more, and put back
if one has come. So of a reader and a removal that meet, one sees the other. What makes a generation on a commit, as a
rewind does, gives its lease back once that is there: so the generations are looked at after the leases.
Of two that prune, one at a time is at a commit: it holds `removing/<g>-<step>.json`, a copy of its object.
"""

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import PurePosixPath

from convoy.checkpoint.format import Commit, DamagedCommitError, failure_note_name, parse_commit, removal_mark_name
from convoy.checkpoint.messages import Pruned
from convoy.checkpoint.verify.marks import commits_with_marks, damaged_in, delete_marks, verified_in
from convoy.checkpoint.writer.retention import (
    GRACE_SECONDS,
    AttemptSummary,
    Inventory,
    abandoned_attempts,
    deletable_attempts,
    deletable_commits,
)
from convoy.config.checkpoint import RetentionConfig
from convoy.job.leases import commits_of_all_leases, leased_commits
from convoy.job.lineage import CommitRef, History, generation_numbers, parse_commits, read_history
from convoy.storage import ObjectMissing, Store, StoreUnavailable

_MARKER = failure_note_name(0)[:7]


class _Stopped(Exception):
    """Asked to stop, or no longer the newest generation: what is left stays for the next time."""


def prune(
    store: Store,
    own_generation: int,
    policy: RetentionConfig,
    *,
    root: Store | None = None,
    grace_seconds: float = GRACE_SECONDS,
    failed: frozenset[str] = frozenset(),
    stop: Callable[[], bool] = lambda: False,
) -> Pruned:
    """Remove what retention no longer needs on this tier; what was removed. An outage or a newer generation ends it
    early, with the reason in `error`.

    root: the job's first tier, whose generations decide; None: `store` is. own_generation: of the caller. failed: names
    of its attempts that it knows to have failed before their commit was begun. stop: called before each removal; True
    ends it.
    """
    pruning = _Pruning(store, root or store, own_generation, stop)
    try:
        pruning.remove_failed_attempts(failed)
        pruning.run(policy, grace_seconds)
    except (StoreUnavailable, _Stopped) as error:
        pruning.error = str(error) or None
    return Pruned(
        tier=store.uri, commits=pruning.commits, attempts=pruning.attempts, bytes=pruning.bytes, error=pruning.error
    )


def would_prune(
    store: Store,
    own_generation: int,
    policy: RetentionConfig,
    *,
    root: Store | None = None,
    grace_seconds: float = GRACE_SECONDS,
) -> Pruned:
    """The objects that `prune` would remove now. Raises StoreUnavailable."""
    work = _Pruning(store, root or store, own_generation, lambda: False)
    tier, history = take_inventory(store), read_history(root or store)
    commits = deletable_commits(history, tier, policy, grace_seconds)
    attempts = list(work.deletable_attempts(history, tier, grace_seconds))
    there = sum(attempt.bytes for attempt in tier.attempts if attempt.ref in commits or attempt in attempts)
    return Pruned(tier=store.uri, commits=commits, attempts=len(attempts), bytes=there)


def take_inventory(store: Store) -> Inventory:
    """The tier's inventory for retention."""
    made = {name: info.modified for name, info in store.listing("commits/").items()}
    return Inventory(
        commits={ref: made[ref.name] for ref in parse_commits(made) if ref.name in made},
        now=store.now(),
        damaged=damaged_in(store),
        verified=verified_in(store),
        leased=leased_commits(store),
        attempts=list(_list_attempts(store)),
    )


class _Pruning:
    def __init__(self, store: Store, root: Store, own_generation: int, stop: Callable[[], bool]) -> None:
        self._store = store
        self._root = root
        self._own = own_generation
        self._stop = stop
        self._damaged = frozenset[CommitRef]()
        self.commits: list[CommitRef] = []
        self.attempts = 0
        self.bytes = 0
        self.error: str | None = None

    def remove_failed_attempts(self, failed: frozenset[str]) -> None:
        """Remove what failed saves have left, which may be why the tier is full: nothing is written on the way.

        So nothing is held in `removing/` either. That is for those who might put back what another removes, and nobody
        puts back an attempt: only the one process that could have committed it knows its name to be over.
        """
        if not failed:
            return
        self._check_generation_newest()
        tier = Inventory(
            commits=dict.fromkeys(parse_commits(self._store.sizes("commits/")), 0.0),
            now=0.0,
            leased=commits_of_all_leases(self._store),
            attempts=list(_list_attempts(self._store)),
        )
        refs = {attempt.ref for attempt in tier.attempts if attempt.name in failed} & tier.commits.keys()
        for attempt in abandoned_attempts(self._own, tier, self._attempts_named_by(refs), failed):
            self._raise_if_stopped()
            self._remove_files(_attempt_prefix(attempt), failure_notes=False)
            self.attempts += 1

    def run(self, policy: RetentionConfig, grace_seconds: float) -> None:
        self._check_generation_newest()
        self._undo_interrupted(grace_seconds)
        marked = commits_with_marks(self._store)
        tier = take_inventory(self._store)
        self._damaged = tier.damaged
        history = read_history(self._root)
        for ref in deletable_commits(history, tier, policy, grace_seconds):
            self._raise_if_stopped()
            self._remove_commit(ref)
        for attempt in self.deletable_attempts(history, tier, grace_seconds):
            self._raise_if_stopped()
            self._remove_attempt(attempt)
        for ref in marked - tier.commits.keys():
            self._raise_if_stopped()
            delete_marks(self._store, ref)
        # A copy has no deadline: one large file of it may be under way for longer than that, under a lease.
        held = tuple(f"shards/{ref.stem}/" for ref in tier.leased)
        self._store.abort_multipart_uploads("shards/", tier.now - grace_seconds, held)

    def _raise_if_stopped(self) -> None:
        if self._stop():
            raise _Stopped
        self._check_generation_newest()

    def _check_generation_newest(self) -> None:
        newest = max(generation_numbers(self._root), default=0)
        if newest < self._own:
            raise StoreUnavailable(f"{self._root.uri} lacks generation {self._own}: is it mounted?")
        if newest > self._own:
            raise _Stopped(f"generation {self._own} is superseded: another run of the job formed generation {newest}")

    def _remove_commit(self, ref: CommitRef) -> None:
        try:
            raw = self._store.read(ref.name)
        except ObjectMissing:
            return
        with self._hold_removal_mark(ref, raw) as alone:
            if not alone or ref.name not in self._store.sizes(ref.name):
                return
            self._store.delete(ref.name)
            try:
                held = ref in leased_commits(self._store)
                self._check_generation_newest()  # after the leases: one that was given back may have left a generation
                if damaged_in(self._store) != self._damaged:
                    raise _Stopped("a commit was found damaged meanwhile: what was to stay instead is decided anew")
                if held:
                    self._store.create(ref.name, raw)
                    return
            except (_Stopped, StoreUnavailable):
                self._store.create(ref.name, raw)
                raise
            self.commits.append(ref)
            commit = _commit_or_none(raw, ref.stem)
            if commit is not None:
                self._remove_files(commit.prefix)
            delete_marks(self._store, ref)

    @contextlib.contextmanager
    def _hold_removal_mark(self, ref: CommitRef, raw: bytes) -> Iterator[bool]:
        """Whether nothing else prunes this commit: of two, one might put back what the other removes.

        raw: the commit's object. Where this is killed, or the store goes away, it is put back from here later.
        """
        name = removal_mark_name(ref)
        if not self._store.create(name, raw):
            yield False
            return
        try:
            yield True
        except StoreUnavailable:
            raise
        except BaseException:
            self._store.delete(name)
            raise
        self._store.delete(name)

    def _undo_interrupted(self, grace_seconds: float) -> None:
        """Put back commits whose removal was cut short, if all of their files are there: it is decided anew."""
        oldest = self._store.now() - grace_seconds
        for name, info in self._store.listing("removing/").items():
            if info.modified >= oldest:
                continue
            with contextlib.suppress(ObjectMissing):
                commit = _commit_or_none(raw := self._store.read(name), PurePosixPath(name).stem)
                if commit is not None and _has_all_files(self._store, commit):
                    self._store.create(commit.ref.name, raw)
            self._store.delete(name)

    def deletable_attempts(self, history: History, tier: Inventory, grace_seconds: float) -> Iterable[AttemptSummary]:
        """One commit may have several attempts, of which it names one."""
        several = {ref for ref, count in Counter(a.ref for a in tier.attempts).items() if count > 1}
        return deletable_attempts(history, tier, self._attempts_named_by(several & tier.commits.keys()), grace_seconds)

    def _attempts_named_by(self, refs: Iterable[CommitRef]) -> dict[CommitRef, str]:
        attempts: dict[CommitRef, str] = {}
        for ref in refs:
            try:
                commit = _commit_or_none(self._store.read(ref.name), ref.stem)
            except ObjectMissing:  # removed above
                continue
            if commit is not None:
                attempts[ref] = commit.attempt
        return attempts

    def _remove_attempt(self, attempt: AttemptSummary) -> None:
        with self._hold_removal_mark(attempt.ref, b"") as alone:
            if not alone or attempt.ref in leased_commits(self._store):  # a copy that has begun meanwhile
                return
            named = self._attempts_named_by([attempt.ref]).get(attempt.ref)
            if attempt.ref.name in self._store.sizes(attempt.ref.name) and named in (None, attempt.name):
                return
            self._remove_files(_attempt_prefix(attempt))
            self.attempts += 1

    def _remove_files(self, prefix: str, failure_notes: bool = True) -> None:
        """failure_notes: also the notes of writers that failed."""
        there = self._store.sizes(prefix)
        sizes = {name: there[name] for name in there if failure_notes or not name.startswith(prefix + _MARKER)}
        # Part records first: what is left half removed must not look like a part that is there.
        for count, name in enumerate(sorted(sizes, key=lambda name: not name.startswith(f"{prefix}part-"))):
            # Not before the first: until then this could still be undone, by whoever takes it for interrupted.
            if count and self._stop():
                raise _Stopped
            self._store.delete(name)
            self.bytes += sizes[name]


def _attempt_prefix(attempt: AttemptSummary) -> str:
    return f"shards/{attempt.ref.stem}/{attempt.name}/"


def _has_all_files(store: Store, commit: Commit) -> bool:
    there = store.sizes(commit.prefix)
    wanted = {**commit.parts, **commit.files}
    return all(there.get(commit.prefix + name) == described.bytes for name, described in wanted.items())


def _commit_or_none(raw: bytes, stem: str) -> Commit | None:
    """The commit that an object of this stem holds. None: it is damaged, or that of another object, and its files are
    removed when they are old enough."""
    try:
        commit = parse_commit(raw, "commit")
    except DamagedCommitError:
        return None
    return commit if commit.ref.stem == stem else None


def _list_attempts(store: Store) -> Iterator[AttemptSummary]:
    sizes: dict[tuple[CommitRef, str], tuple[int, float, bool]] = {}
    for name, info in store.listing("shards/").items():
        match = re.match(r"shards/(\d+)-(\d+)/([^/]+)/", name)
        if match:
            key = (CommitRef(generation=int(match[1]), step=int(match[2])), match[3])
            size, changed, only_markers = sizes.get(key, (0, 0.0, True))
            only_markers = only_markers and name[match.end() :].startswith(_MARKER)
            sizes[key] = (size + info.bytes, max(changed, info.modified), only_markers)
    for (ref, name), (size, changed, only_markers) in sizes.items():
        yield AttemptSummary(ref, name, size, changed, only_markers)
