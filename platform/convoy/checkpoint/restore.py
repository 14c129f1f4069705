"""Restoring the commit that a generation starts from."""

from typing import Any

import torch.distributed as dist

from convoy.checkpoint.commit import Commit, check_files, check_parameters, read_commit
from convoy.checkpoint.files import read_shards
from convoy.checkpoint.state import parameter_shapes
from convoy.job.lineage import CommitRef
from convoy.storage import Store


def restore(store: Store, ref: CommitRef, tensors: dict[str, Any], group: dist.ProcessGroup | None) -> Commit:
    """Fill `tensors` in place from commit `ref`, chosen when the generation was formed, at any world size.

    All ranks of `group` call it with the same `ref`. Raises DamagedCommitError, ShardsError, StoreUnavailable, and
    ConfigError if a newer Convoy wrote it, or for another model.
    """
    commit = read_commit(store, ref)
    check_parameters(commit, parameter_shapes(tensors))
    check_files(store, commit)
    read_shards(tensors, f"{store.uri}/{commit.shards}".rstrip("/"), group)
    return commit
