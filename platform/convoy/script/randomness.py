"""The random generators of all ranks, as part of a checkpoint: Python's, NumPy's, torch's, and those of loaders."""

import random
import sys
from collections.abc import Iterable, Iterator, Mapping
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
        self._generators: list[torch.Generator] = []
        self._epoch = collect()
        self._states: list[dict[str, State]] = []

    def note_epoch(self, loaders: Iterable[Any] = ()) -> None:
        """The data of an epoch begin. loaders: which may have generators of their own."""
        self._generators = generators_of(loaders)
        self._epoch = collect(self._generators)

    def watch(self, loaders: Iterable[Any]) -> None:
        """These loaders, whose data have begun, may have generators of their own."""
        self._generators = generators_of(loaders)

    def gather(self) -> None:
        """Take the states of this moment for the next save. All ranks call it."""
        self._states = self._ranks.all_gather({"epoch": self._epoch, "save": collect(self._generators)})

    def begin_epoch_again(self, loaders: Iterable[Any] = ()) -> None:
        """Put the generators as they were when the restored epoch's data began."""
        self._generators = generators_of(loaders)
        self._epoch = self._own()["epoch"]
        put(self._epoch, self._generators)

    def continue_from_save(self, loaders: Iterable[Any] = ()) -> None:
        """Put the generators as they were when the restored checkpoint was saved. loaders: whose next epoch begins."""
        put(self._own()["save"], generators_of(loaders))

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


def generators_of(loaders: Iterable[Any]) -> list[torch.Generator]:
    """The generators that loaders and their samplers have of their own, each once."""
    found = (getattr(part, "generator", None) for loader in loaders for part in _parts(loader))
    return list({id(each): each for each in found if isinstance(each, torch.Generator)}.values())


def _parts(loader: Any) -> Iterator[Any]:
    """The loader, and the samplers below it: torch's one or two, and those that Accelerate puts around them."""
    yield loader
    for name in ("sampler", "batch_sampler"):
        inner = getattr(loader, name, None)
        if inner is not None:
            yield from _parts(inner)


def collect(generators: Iterable[torch.Generator] = ()) -> State:
    """The states of this process's generators, and of these."""
    state: State = {"python": random.getstate(), "torch": _to_bytes(torch.get_rng_state())}
    state["loaders"] = [_to_bytes(generator.get_state()) for generator in generators]
    if "numpy" in sys.modules:
        kind, keys, position, has_gauss, gauss = sys.modules["numpy"].random.get_state()
        state["numpy"] = (str(kind), keys.tobytes(), int(position), int(has_gauss), float(gauss))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = _to_bytes(torch.cuda.get_rng_state())
    return state


def put(state: State, generators: Iterable[torch.Generator] = ()) -> None:
    """Put the generators into these states. generators: as when they were collected, or none."""
    random.setstate(state["python"])
    torch.set_rng_state(_to_tensor(state["torch"]))
    for generator, own in zip(generators, state["loaders"], strict=False):
        generator.set_state(_to_tensor(own))
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
