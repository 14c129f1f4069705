"""Runs a function on several forked ranks of a gloo group, for tests."""

import gc
import multiprocessing
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.distributed as dist

TIMEOUT_SECONDS = 60.0


def on_ranks(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """What `function(rank, *args)` returns on each rank; raises when a rank fails or none ends in time."""
    context = multiprocessing.get_context("fork")
    with TemporaryDirectory() as name:
        folder = Path(name)
        ranks = [
            context.Process(target=_rank, args=(rank, world_size, folder, function, args)) for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        for process in ranks:
            process.join(max(0.0, deadline - time.monotonic()))
        for process in ranks:
            process.kill()
            process.join()
        return [_result(folder, rank) for rank in range(world_size)]


def _rank(rank: int, world_size: int, folder: Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    gc.freeze()  # nothing inherited, such as another test's process group, may be collected here
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world_size)
        torch.save(function(rank, *args), folder / f"{rank}.unfinished")
        (folder / f"{rank}.unfinished").rename(folder / f"{rank}.result")
        dist.destroy_process_group()
    except BaseException:
        (folder / f"{rank}.error").write_text(traceback.format_exc())
        raise


def _result(folder: Path, rank: int) -> Any:
    result = folder / f"{rank}.result"
    if not result.exists():
        error = folder / f"{rank}.error"
        raise AssertionError(error.read_text() if error.exists() else f"rank {rank} did not end in {TIMEOUT_SECONDS} s")
    return torch.load(result)
