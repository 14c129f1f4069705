"""The loop of a script of one's own, as with DDP, Accelerate or DeepSpeed, with all that a gang offers.

    loop = Loop({"model": model, "optimizer": optimizer}, save_every=100)
    for epoch in loop.epochs(3):
        for batch in loop.batches(loader):
            ...  # as before: loss, backward, optimizer step

It reports progress, saves every so many steps and at notices, and after a restart begins in the epoch and after the
batch of the newest verified checkpoint, with the random generators as they were. Outside a gang, it only counts.
"""

import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any, TypeVar

import torch

from convoy import script
from convoy.config.errors import ConfigError
from convoy.script.saves import Saves

__all__ = ["Loop"]

Batch = TypeVar("Batch")

_END: Any = object()


class Loop:
    """A training's epochs and batches. All ranks make each call at once, after the process group is there.

    A script with several makes them in the same order in each attempt: the checkpoints of each are known by its number.
    """

    _count = 0
    """Of those that this process made in a gang."""

    def __init__(
        self,
        state: Mapping[str, Any] | None = None,
        *,
        save: Callable[[str], object] | None = None,
        load: Callable[[str], object] | None = None,
        save_every: int,
        batches_per_step: int = 1,
    ) -> None:
        """Restores the newest verified checkpoint, if there is one.

        state: as of `Checkpoints`: tensors, objects with `state_dict`, and plain values, which are restored in place.
        save, load: for a library that writes and reads a folder on all ranks, as `accelerator.save_state` and
        `accelerator.load_state`, or `engine.save_checkpoint` and `engine.load_checkpoint`.
        save_every: steps between saves. batches_per_step: over how many batches gradients accumulate.
        Raises ConfigError, CheckpointError.
        """
        for name, number in (("save_every", save_every), ("batches_per_step", batches_per_step)):
            if number < 1:
                raise ConfigError(f"{name} = {number}: must be at least 1")
        if (save is None) != (load is None):
            raise ConfigError("save, load: must both be given, or neither")
        self._write, self._save_every, self._batches_per_step = save, save_every, batches_per_step
        self.step = 0
        """Steps that are done."""
        self._epoch = self._done = 0
        self._resumes = False
        self._saves: Saves | None = None
        if script.in_gang():
            Loop._count += 1
            found = [value for value in (state or {}).values() if isinstance(value, torch.optim.Optimizer)]
            name = "loop" if Loop._count == 1 else f"loop-{Loop._count}"
            self._saves = Saves(name, state, found[0] if len(found) == 1 else None)
            self._scratch = _scratch_folder()
            self._resume(self._saves, load)

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are not done, as `range(count)` would give them."""
        for epoch in range(self._epoch, count):
            self._epoch = epoch
            yield epoch
        if self._saves is not None:
            self._saves.close()

    def batches(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The batches of the epoch that are not done. Raises ConfigError.

        After a restart those that are done are loaded once more, and not given: a loader's state is known to it alone.
        """
        self._check_length(loader)
        done, self._done = self._done, 0
        resumes, self._resumes = self._resumes, False
        if self._saves is not None:
            if resumes:
                self._saves.random.begin_epoch_again([loader])
            self._saves.random.note_epoch([loader])
        if resumes and hasattr(loader, "set_epoch"):  # as of Accelerate's loaders, which count their epochs
            loader.set_epoch(self._epoch)
        iterator = iter(loader)
        for _ in range(done):
            next(iterator)
        if resumes and self._saves is not None:
            self._saves.random.continue_from_save()
        while (batch := next(iterator, _END)) is not _END:  # `for` would have DeepSpeed's loader begin again
            yield batch
            done += 1
            if done % self._batches_per_step == 0:
                self._step_done(done)

    def _step_done(self, batches: int) -> None:
        self.step += 1
        if self._saves is None:
            return
        ordered = self._saves.step_done(self.step)
        if ordered or self.step % self._save_every == 0:
            folder = None
            if self._write is not None:
                folder = self._saves.own_folder(self._scratch)
                self._write(str(folder))
            self._saves.save(self.step, folder, {"epoch": self._epoch, "batches": batches, "step": self.step})
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _resume(self, saves: Saves, load: Callable[[str], object] | None) -> None:
        values = saves.restore(self._scratch)
        if values is None:
            return
        if saves.folder is not None and load is not None:
            load(str(saves.folder))
        self._epoch, self._done, self.step = values["epoch"], values["batches"], values["step"]
        self._resumes = True

    def _check_length(self, loader: Iterable[Any]) -> None:
        length = len(loader) if isinstance(loader, Sized) else 0
        if length % self._batches_per_step:
            raise ConfigError(
                f"batches_per_step = {self._batches_per_step}: must divide the epoch's batches, {length}: gradients "
                "that accumulate over the end of an epoch are not saved"
            )


def _scratch_folder() -> Path:
    """On this host's disk, the same in each of the job's attempts, so that nothing is left there for long."""
    return Path(tempfile.gettempdir(), f"convoy-script-{zlib.crc32(script.checkpoints_uri().encode()):08x}")
