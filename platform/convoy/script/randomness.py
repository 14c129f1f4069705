"""The random generators of all ranks, as part of a checkpoint: Python's, NumPy's, torch's on the CPU and on this GPU."""

import random
import sys
from collections.abc import Mapping
from typing import Any

import torch

from convoy.checkpoint import CheckpointError
from convoy.checkpoint.group import GroupMember

State = dict[str, Any]
"""Of the generators of one rank: plain values."""


class RandomStates:
    """Each rank's, at two moments: when the data of its epoch began, and when the checkpoint was saved.

    A loader draws its order when it begins. To come to the same batch again it begins as it did, and passes over those
    that are done; then training continues as it would have.
    """

    def __init__(self, ranks: GroupMember) -> None:
        self._ranks = ranks
        self._epoch = collect()
        self._states: list[dict[str, State]] = []

    def note_epoch(self) -> None:
        """The data of an epoch begin."""
        self._epoch = collect()

    def gather(self) -> None:
        """Take the states of this moment for the next save. All ranks call it."""
        self._states = self._ranks.all_gather({"epoch": self._epoch, "save": collect()})

    def begin_epoch_again(self) -> None:
        """Put the generators as they were when the restored epoch's data began."""
        self._epoch = self._own()["epoch"]
        put(self._epoch)

    def continue_from_save(self) -> None:
        """Put the generators as they were when the restored checkpoint was saved."""
        put(self._own()["save"])

    def state_dict(self) -> dict[str, Any]:
        return {"ranks": self._states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._states = state["ranks"]

    def _own(self) -> dict[str, State]:
        if len(self._states) != self._ranks.size:
            raise CheckpointError(
                f"the checkpoint was saved by {len(self._states)} ranks, and {self._ranks.size} restore it: the same "
                "batches follow on as many ranks alone"
            )
        return self._states[self._ranks.rank]


def collect() -> State:
    """The states of this process's generators."""
    state: State = {"python": random.getstate(), "torch": _to_bytes(torch.get_rng_state())}
    if "numpy" in sys.modules:
        kind, keys, position, has_gauss, gauss = sys.modules["numpy"].random.get_state()
        state["numpy"] = (str(kind), keys.tobytes(), int(position), int(has_gauss), float(gauss))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = _to_bytes(torch.cuda.get_rng_state())
    return state


def put(state: State) -> None:
    """Put the generators into these states."""
    random.setstate(state["python"])
    torch.set_rng_state(_to_tensor(state["torch"]))
    if "numpy" in state:
        import numpy

        kind, keys, *rest = state["numpy"]
        numpy.random.set_state((kind, numpy.frombuffer(keys, dtype=numpy.uint32), *rest))
    if "cuda" in state:
        torch.cuda.set_rng_state(_to_tensor(state["cuda"]))


def _to_bytes(state: torch.Tensor) -> bytes:
    return state.numpy().tobytes()


def _to_tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
