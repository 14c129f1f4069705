"""Which commits count. Pure functions over names and generations; nothing here touches a store but `read_history`.

A commit counts if the newest generation made it, or an ancestor did at or below the step where the child branched
off. So a rewound branch, and whatever a superseded gang still writes, is never read.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from convoy.storage import Store


class CommitRef(BaseModel):
    """A commit by its name: the generation that made it, and the steps done."""

    model_config = ConfigDict(frozen=True)

    generation: int
    step: int

    @property
    def name(self) -> str:
        return f"commits/{self.generation:06d}-{self.step:09d}.json"


class Generation(BaseModel):
    """`generations/<g>.json`: one formation of the gang, made before any of its workers starts."""

    model_config = ConfigDict(frozen=True)

    generation: int
    parent: CommitRef | None
    """The commit it goes on from; None: from the start."""
    formation: str
    """What formed it: the flow's task and attempt, or `rewind`."""
    nodes: int
    world_size: int
    config_hash: str
    created: float
    """Unix time."""
    rendezvous: str = ""
    """`host:port` of rank 0's store."""

    @property
    def name(self) -> str:
        return generation_name(self.generation)


@dataclass(frozen=True)
class History:
    """All generations and commits of a job."""

    generations: dict[int, Generation]
    commits: frozenset[CommitRef]

    @property
    def newest(self) -> int:
        """Number of the newest generation; 0 if there is none."""
        return max(self.generations, default=0)


def lineage(history: History) -> list[CommitRef]:
    """The commits that count, oldest first. The last one is where the next generation goes on."""
    kept: list[CommitRef] = []
    generation, last_step = history.newest, None
    while generation in history.generations:
        own = sorted(c.step for c in history.commits if c.generation == generation)
        usable = [s for s in own if last_step is None or s <= last_step]
        kept = [CommitRef(generation=generation, step=s) for s in usable] + kept
        parent = history.generations[generation].parent
        if parent is None:
            break
        generation, last_step = parent.generation, parent.step
    return kept


def newest_commit(history: History) -> CommitRef | None:
    """The commit the next generation starts from; None: from the beginning."""
    counted = lineage(history)
    return counted[-1] if counted else None


def read_history(store: Store) -> History:
    """The job's generations and the names of its commits."""
    generations = [Generation.model_validate_json(store.read(name)) for name in store.sizes("generations/")]
    return History({g.generation: g for g in generations}, frozenset(parse_commits(store.sizes("commits/"))))


def newest_config(history: History) -> str | None:
    """Hash of the configuration that the newest generation with workers ran with."""
    hashes = [g.config_hash for _, g in sorted(history.generations.items()) if g.config_hash]
    return hashes[-1] if hashes else None


def parse_commits(names: Iterable[str]) -> list[CommitRef]:
    """Commits by their object names; other names are not commits."""
    matches = (re.fullmatch(r"commits/(\d+)-(\d+)\.json", name) for name in names)
    return [CommitRef(generation=int(m[1]), step=int(m[2])) for m in matches if m]


def generation_name(generation: int) -> str:
    return f"generations/{generation:06d}.json"
