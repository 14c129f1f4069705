"""Checkpoints: shards under unique names, and the commit object that makes them exist.

`from convoy.checkpoint import Checkpoints, CheckpointError` is the public API, with `Folder` for states that
hold files. torch is imported only with `Checkpoints`: the writer process and the command line do without it.
"""

from typing import TYPE_CHECKING, Any

from convoy.checkpoint.errors import CheckpointError

if TYPE_CHECKING:
    from convoy.checkpoint.api import Checkpoints, Pending, Restored
    from convoy.checkpoint.state.folder import Folder

__all__ = ["CheckpointError", "Checkpoints", "Folder", "Pending", "Restored"]


def __getattr__(name: str) -> Any:
    if name in ("Checkpoints", "Pending", "Restored"):
        from convoy.checkpoint import api

        return getattr(api, name)
    if name == "Folder":
        from convoy.checkpoint.state import folder

        return folder.Folder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
