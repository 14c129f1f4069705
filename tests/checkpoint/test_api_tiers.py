"""Several tiers of an opened store: what hangs on one is no matter of the others."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from convoy.checkpoint import Checkpoints
from convoy.job.lineage import parse_commits
from convoy.storage import open_store

WAIT_SECONDS = 30.0
HANGS = 1
"""Index of the tier that does."""


def steps(place: Path) -> list[int]:
    return sorted(ref.step for ref in parse_commits(open_store(str(place)).sizes("commits/")))


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@contextlib.contextmanager
def hanging(place: Path) -> Iterator[None]:
    """Who copies a commit to the tier hangs: the first generation's object, which it compares, is a pipe."""
    name = place / "generations" / "000001.json"
    data = name.read_bytes()
    name.unlink()
    os.mkfifo(name)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # nobody reads
            os.close(os.open(name, os.O_WRONLY | os.O_NONBLOCK))  # a pipe has no positions: an error, tried again
        name.unlink()
        name.write_bytes(data)


def test_a_further_tier_that_hangs_holds_up_only_the_copies_to_itself(tmp_path: Path) -> None:
    root, hangs, good = (tmp_path / name for name in ("root", "hangs", "good"))
    with Checkpoints(str(root), tiers=[str(hangs), str(good)], keep_last=10) as ckpt:

        def copied(step: int) -> None:
            wait_for(lambda: step in steps(good) and ckpt._agreement.view().busy.copying <= {HANGS})

        ckpt.save(1, {"t": torch.arange(10)}).wait()
        copied(1)
        wait_for(lambda: steps(hangs) == [1] and not ckpt._agreement.view().busy.copying)
        with hanging(hangs):
            for step in (2, 3, 4):
                ckpt.save(step, {"t": torch.arange(10)}).wait()
                copied(step)
            assert steps(hangs) == [1]
            assert ckpt._agreement.view().busy.copying == {HANGS}
    assert steps(good) == [1, 2, 3, 4]
    assert steps(hangs) == [1, 2, 4]
