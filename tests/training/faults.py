"""Faults for ranks: each is called in a rank's own process before it begins, and spoils something in there alone."""

import errno
import hashlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from convoy.checkpoint import commits
from convoy.checkpoint.format import Progress
from convoy.checkpoint.restore import load
from convoy.checkpoint.save.driver import Save
from convoy.checkpoint.save.queue import StatusCounts
from convoy.checkpoint.save.staging import StagedCopy, Stager
from convoy.checkpoint.writer import post_commit
from convoy.storage import Store
from convoy.training.batch import Batch
from convoy.training.checkpointing.saver import Saver
from convoy.training.step import Stepper, StepResult

Action = Callable[[Stepper, int, Sequence[Batch]], object]


def before_step(action: Action) -> None:
    """Have `action(stepper, step, batches)` called before each step of this process."""
    real = Stepper.__call__

    def call(self: Stepper, batches: Sequence[Batch], step: int, *args: Any) -> StepResult:
        action(self, step, batches)
        return real(self, batches, step, *args)

    Stepper.__call__ = call  # type: ignore[method-assign,assignment]


def at_step(step: int, ranks: Iterable[int], action: Callable[[Stepper], object]) -> Callable[[int], None]:
    """These ranks do something before the update that would make `step` steps done into `step + 1`."""

    def fault(rank: int) -> None:
        if rank in ranks:
            before_step(lambda stepper, copy_now, _: action(stepper) if copy_now == step else None)

    return fault


def signalled_at(step: int, ranks: Iterable[int], number: int) -> Callable[[int], None]:
    return at_step(step, ranks, lambda _: os.kill(os.getpid(), number))


def die_at(step: int, ranks: Iterable[int]) -> Callable[[int], None]:
    """These ranks are killed before that update."""
    return signalled_at(step, ranks, signal.SIGKILL)


Spoil = Callable[[torch.Tensor], torch.Tensor]


def spoil_loss(spoil: Spoil, steps: Iterable[int], rank: int) -> Callable[[int], None]:
    """The loss of one rank's batches goes through `spoil` in these steps."""
    return spoil_losses(dict.fromkeys(steps, spoil), rank)


def spoil_losses(spoils: Mapping[int, Spoil], rank: int) -> Callable[[int], None]:
    """The loss of one rank's batches goes through something else in each of these steps."""

    def fault(own: int) -> None:
        real: dict[str, Callable[..., torch.Tensor]] = {}

        def act(stepper: Stepper, step: int, _: Sequence[Batch]) -> None:
            engine: Any = stepper._engine
            forward = real.setdefault("forward", engine._forward)
            spoil = spoils.get(step) if own == rank else None
            engine._forward = forward if spoil is None else lambda *x: spoil(forward(*x))

        before_step(act)

    return fault


def spoil_state(where: str, step: int, rank: int) -> Callable[[int], None]:
    """A number of one rank's weights, or of its optimizer's state, is NaN when the state of that step is saved."""

    def fault(own: int) -> None:
        begin = Saver.save

        def save(self: Saver, progress: Progress, *, copy_now: bool = False) -> Save | None:
            if progress.step == step and own == rank:
                weight = self._engine.optimizer.param_groups[0]["params"][0]
                spoiled: Any = weight if where == "weights" else self._engine.optimizer.state[weight]["exp_avg"]
                getattr(spoiled, "_local_tensor", spoiled).detach().view(-1)[0] = torch.nan
            return begin(self, progress, copy_now=copy_now)

        Saver.save = save  # type: ignore[method-assign]

    return fault


def note_samples(folder: Path) -> Callable[[int], None]:
    """Each rank notes in `folder/<step>-<rank>` which sequences it takes: one digest per line."""

    def fault(rank: int) -> None:
        def note(_: Stepper, step: int, batches: Sequence[Batch]) -> None:
            rows = [digest(row) for b in batches for row, t in zip(*b.inputs[:2], strict=True) if t.max() >= 0]
            (folder / f"{step}-{rank}").write_text("\n".join(rows))

        folder.mkdir(exist_ok=True)
        before_step(note)

    return fault


def noted_samples(folder: Path) -> dict[int, list[str]]:
    """By step, the sequences that all ranks noted, sorted."""
    found: dict[int, list[str]] = {}
    for path in folder.iterdir():
        found.setdefault(int(path.name.partition("-")[0]), []).extend(path.read_text().splitlines())
    return {step: sorted(rows) for step, rows in found.items()}


def digest(row: torch.Tensor) -> str:
    return hashlib.sha256(row.numpy().tobytes()).hexdigest()[:12]


def copy_late() -> None:
    """State is copied at the last moment, by who is about to change it; and each save first settles those before."""
    copied = StagedCopy.wait

    def wait(self: StagedCopy) -> None:
        while self._work and threading.current_thread() is not threading.main_thread():
            time.sleep(0.0005)
        copied(self)

    StagedCopy.wait = wait  # type: ignore[method-assign]
    settle_before_each_save()


def settle_before_each_save() -> None:
    begin = Saver.save

    def save(self: Saver, progress: Progress, *, copy_now: bool = False) -> Save | None:
        self.settle_all(progress.step)
        return begin(self, progress, copy_now=copy_now)

    Saver.save = save  # type: ignore[method-assign]


def know_nothing_of_saves() -> None:
    """What became of a save is not known until the last one."""
    last, ask = Saver.save_last, Saver.status
    ended: list[bool] = []

    def save_last(self: Saver, progress: Progress) -> str | None:
        ended.append(True)
        return last(self, progress)

    Saver.save_last = save_last  # type: ignore[method-assign]
    Saver.status = lambda self: ask(self) if ended else StatusCounts()  # type: ignore[method-assign]


def slow_post_commit_work(seconds: float) -> None:
    """This rank's writer process takes so long for each part that it reads back or copies, and more."""
    for name in ("verify_part", "copy_part"):
        real = getattr(post_commit, name)

        def slow(*args: Any, real: Callable[..., int] = real, **named: Any) -> int:
            time.sleep(seconds)
            return real(*args, **named)

        setattr(post_commit, name, slow)


def copies_hang(uri: str, over: Path) -> None:
    """This rank's writer process hangs in each copy of its part to a tier until that file is there."""
    real = post_commit.copy_part

    def copy(source: Store, target: Store, *args: Any, **named: Any) -> int:
        while target.uri == uri and not over.exists():
            time.sleep(0.005)
        return real(source, target, *args, **named)

    post_commit.copy_part = copy


def host(name: str, misreads: bool = False) -> None:
    """This rank is on a host of that name, whose reads of data may all go wrong; its writer process, forked, too."""
    socket.gethostname = lambda: name
    load.OUTAGE_PAUSES_SECONDS = ()  # type: ignore[assignment]
    if misreads:
        real = commits.crc32c
        # Chunks are read into memory of the caller's; part records, which are bytes, read right.
        commits.crc32c = lambda data: real(data) ^ isinstance(data, memoryview)  # type: ignore[assignment]


NO_MEMORY = OSError(errno.ENOMEM, "Cannot allocate memory")


def copies_fail(times: int, error: Exception = NO_MEMORY) -> None:
    """The first so many copies of the state of this rank raise this."""
    real, failures = Stager.stage, iter(range(times))

    def stage(self: Stager, *args: Any) -> StagedCopy:
        if next(failures, None) is not None:
            raise error
        return real(self, *args)

    Stager.stage = stage  # type: ignore[method-assign]
