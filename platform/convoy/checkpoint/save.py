"""Saving: shards under a unique name by all ranks, then one commit by rank 0."""

import contextlib
import time
import uuid
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from convoy.checkpoint.commit import Commit, create_commit, shards_prefix
from convoy.checkpoint.files import write_shards
from convoy.job.lineage import generation_name
from convoy.storage import Store, StoreUnavailable


@dataclass(frozen=True)
class Saved:
    """What a save left. All ranks get the same, but `commit` is rank 0's alone."""

    attempt: str
    bytes: int
    seconds: float
    error: str | None
    """Why there is no commit; None: there is."""
    superseded: bool = False
    """Another gang has formed a newer generation of the job: nothing this one commits would count."""


def save(store: Store, tensors: dict[str, Any], draft: Commit, group: dist.ProcessGroup) -> Saved:
    """Write `tensors` and commit them. All ranks of `group` call it at the same step; none raises.

    draft: the commit but for its attempt, files and time. A failed save leaves the commit before it in place.
    """
    began = time.perf_counter()
    attempt = str(_from_first(uuid.uuid4().hex, group))
    prefix = shards_prefix(draft.generation, draft.step, attempt)
    error: str | None = None
    try:
        write_shards(tensors, f"{store.uri}/{prefix}".rstrip("/"), group)
    except Exception as failure:
        # Whatever failed, on whichever rank: the attempt is not committed, and training goes on.
        error = _one_line(failure)
    errors = _everyones(error, group)
    total, error = 0, next((e for e in errors if e), None)
    if dist.get_rank(group) == 0:
        if error is None:
            total, error = _commit(store, draft, attempt, prefix)
        else:
            _discard(store, prefix)
    superseded = dist.get_rank(group) == 0 and error is not None and _is_superseded(store, draft.generation)
    total, error, superseded = _from_first((total, error, superseded), group)
    return Saved(attempt, total, time.perf_counter() - began, error, superseded)


def _commit(store: Store, draft: Commit, attempt: str, prefix: str) -> tuple[int, str | None]:
    try:
        if _is_superseded(store, draft.generation):
            return 0, f"generation {draft.generation} is superseded: another run of the job formed a newer one"
        files = {name.removeprefix(prefix): size for name, size in store.sizes(prefix).items()}
        create_commit(store, draft.model_copy(update={"attempt": attempt, "files": files, "created": time.time()}))
        return sum(files.values()), None
    except Exception as failure:
        return 0, _one_line(failure)


def _is_superseded(store: Store, generation: int) -> bool:
    try:
        newest = max(store.sizes("generations/"), default="")
    except StoreUnavailable:
        return False
    return newest > generation_name(generation)


def _discard(store: Store, prefix: str) -> None:
    """Give back the space of shards that no commit will name: perhaps there was too little."""
    with contextlib.suppress(StoreUnavailable):
        for name in store.sizes(prefix):
            store.delete(name)


def _from_first(value: Any, group: dist.ProcessGroup) -> Any:
    box = [value]
    dist.broadcast_object_list(box, group=group, group_src=0)
    return box[0]


def _everyones(value: str | None, group: dist.ProcessGroup) -> list[str | None]:
    box: list[str | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(box, value, group=group)
    return box


def _one_line(failure: Exception) -> str:
    lines = [line for line in str(failure).splitlines() if line.strip()]
    return f"{type(failure).__name__}: {lines[-1].strip() if lines else ''}"[:500]
