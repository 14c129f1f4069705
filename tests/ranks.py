"""Runs a function on several forked ranks, for tests: what each returns, or the traceback of the one that failed."""

import faulthandler
import gc
import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch._dynamo  # what torch imports late is imported once here, not by every fork
import torch.distributed as dist

from tests.campaign import times

TIMEOUT_SECONDS = times(60)
"""For all examples that the ranks try; as many times longer in a campaign as there are more of them."""

AFTER_FAILURE_SECONDS = 5.0
"""When one rank failed, the others get this long to end by themselves."""

KILLED = object()
"""What a rank gives that was killed, or left without a word."""

# Worker threads of OpenMP do not survive a fork: a child would wait for them for ever.
torch.set_num_threads(1)


class RankFailedError(AssertionError):
    """A rank raised, or did not end in time."""


def on_ranks(world_size: int, function: Callable[..., Any], *args: Any, may_die: bool = False) -> list[Any]:
    """What `function(rank, *args)` returns on each rank, each a fork of this process with one thread.

    Raises RankFailedError with the traceback if a rank raises, is killed (unless it `may_die`), or none ends in time.
    """
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(world_size)]
    processes = [
        context.Process(target=_rank, args=(rank, send, function, args), name=f"rank {rank}")
        for rank, (_, send) in enumerate(pipes)
    ]
    for process, (_, send) in zip(processes, pipes, strict=True):
        process.start()
        send.close()
    try:
        answers = _answers([receive for receive, _ in pipes], processes)
    finally:
        for process in processes:
            process.kill()
            process.join()
    return [_result(rank, answer, may_die) for rank, answer in enumerate(answers)]


def in_a_group(world_size: int, function: Callable[..., Any], *args: Any, may_die: bool = False) -> list[Any]:
    """The same of ranks that are torch's default process group, over gloo."""
    with TemporaryDirectory() as folder:
        return on_ranks(world_size, _in_a_group, world_size, f"{folder}/store", function, args, may_die=may_die)


def _in_a_group(rank: int, world_size: int, path: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{path}", rank=rank, world_size=world_size)
    return function(rank, *args)


def _rank(rank: int, send: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    # A process group that the parent left as garbage would, collected here, wait for threads that did not fork along.
    gc.freeze()
    faulthandler.register(signal.SIGUSR1, file=2, all_threads=True)
    torch.set_num_threads(1)
    try:
        answer = pickle.dumps(("returned", function(rank, *args)))
    except BaseException:
        answer = pickle.dumps(("raised", traceback.format_exc()))
    send.send_bytes(answer)
    send.close()
    # As a worker ends: a process group whose peers are gone cannot be torn down.
    os._exit(0)


def _answers(receivers: Sequence[Connection], processes: Sequence[BaseProcess]) -> list[Any]:
    answers: dict[int, Any] = {}
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while len(answers) < len(receivers):
        waiting = {receivers[i]: i for i in range(len(receivers)) if i not in answers}
        ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            break
        for connection in ready:
            assert isinstance(connection, Connection)
            answer = _received(connection)
            answers[waiting[connection]] = answer
            if answer is KILLED or answer[0] == "raised":
                deadline = min(deadline, time.monotonic() + AFTER_FAILURE_SECONDS)
    for i, process in enumerate(processes):
        if i not in answers and process.pid is not None:
            os.kill(process.pid, signal.SIGUSR1)  # prints where it hangs
            time.sleep(0.1)
    return [answers.get(i) for i in range(len(receivers))]


def _received(connection: Connection) -> Any:
    try:
        return pickle.loads(connection.recv_bytes())
    except EOFError:
        return KILLED


def _result(rank: int, answer: Any, may_die: bool) -> Any:
    if answer is None:
        raise RankFailedError(f"rank {rank} did not end in time; where it hung is on standard error")
    if answer is KILLED:
        if may_die:
            return KILLED
        raise RankFailedError(f"rank {rank} was killed")
    kind, value = answer
    if kind == "raised":
        raise RankFailedError(f"rank {rank}:\n{value}")
    return value
