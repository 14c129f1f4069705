"""A list of the checkpoints on one tier of a job, for people and scripts."""

from pydantic import BaseModel, ConfigDict, Field

from convoy.checkpoint.commits import CommitGoneError, read_commit
from convoy.checkpoint.format import Commit, DamagedCommitError
from convoy.checkpoint.verify.marks import read_damage, suspicions, verified_parts
from convoy.config.errors import ConfigError
from convoy.job.leases import leased_commits
from convoy.job.lineage import CommitRef, History, counted_commits, read_history
from convoy.storage import Store


class ListEntry(BaseModel):
    """One commit, on one tier."""

    model_config = ConfigDict(frozen=True)

    generation: int
    step: int
    counts: bool
    """It lies on the lineage of the newest generation and is not damaged: a restore may use it."""
    verified: bool
    """Every part was read back after the commit."""
    verified_parts: int
    parts: int | None
    """How many writers wrote it; None: its object cannot be read."""
    bytes: int | None
    """Size of all data files."""
    attempt: str | None
    created: float | None
    """Unix time."""
    in_use: bool
    """A reader holds a lease on it."""
    damage: str | None
    """The damage, if it is marked as damaged."""
    suspected_by: list[str] = Field(default_factory=list)
    """Hosts that found it damaged, which no other host has confirmed yet."""
    problem: str | None = None
    """Why its object cannot be read, if it is not marked."""

    @property
    def ref(self) -> CommitRef:
        return CommitRef(generation=self.generation, step=self.step)


def read_existing_history(store: Store) -> History:
    """The job's generations and commits on this tier. Raises ConfigError if there are none of either."""
    history = read_history(store)
    if not history.generations and not history.commits:
        raise ConfigError(f"uri = {store.uri}: holds no job's checkpoints; it must be the URI of one job on one tier")
    return history


def list_commits(store: Store) -> list[ListEntry]:
    """All commits of the tier, in the order of their names; those that do not count, too."""
    history = read_existing_history(store)
    counted, held = set(counted_commits(history)), leased_commits(store)
    doubts = [(suspicion.ref, suspicion.host) for suspicion in suspicions(store)]
    rows = (
        _read_entry(store, ref, ref in counted, ref in held, sorted({host for about, host in doubts if about == ref}))
        for ref in sorted(history.commits, key=lambda ref: (ref.generation, ref.step))
    )
    return [row for row in rows if row is not None]


def _read_entry(store: Store, ref: CommitRef, counts: bool, in_use: bool, suspected_by: list[str]) -> ListEntry | None:
    """None: it was pruned meanwhile."""
    commit: Commit | None = None
    problem: str | None = None
    try:
        commit = read_commit(store, ref)
    except CommitGoneError:
        return None
    except (DamagedCommitError, ConfigError) as error:
        problem = str(error)
    evidence, read_back = read_damage(store, ref), len(verified_parts(store, ref))
    return ListEntry(
        generation=ref.generation,
        step=ref.step,
        counts=counts,
        verified=commit is not None and not (evidence or suspected_by) and read_back >= len(commit.parts),
        verified_parts=read_back,
        parts=len(commit.parts) if commit else None,
        bytes=commit.bytes if commit else None,
        attempt=commit.attempt if commit else None,
        created=commit.created if commit else None,
        in_use=in_use,
        damage=evidence.error if evidence else None,
        suspected_by=suspected_by,
        problem=None if evidence else problem,
    )
