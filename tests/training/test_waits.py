"""A rank that waits for others is told from one that computes, and a lost peer from a cause."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from convoy.config.errors import ConfigError
from convoy.gang.workers import board
from convoy.gang.workers.board import is_waiting
from convoy.parallel.gloo import AllGather
from convoy.training.process_groups import choose_device, is_lost_peer
from convoy.training.rank import WAITS_IN
from convoy.training.step import StepExchange, UrgentStop
from tests.ranks import KILLED, in_a_group
from tests.training.job import place


def is_seen_to_wait(call: Callable[[Any], object]) -> bool:
    """Whether a thread is, while a collective that `call` began is not done. call: takes the collective's work."""
    done = threading.Lock()
    done.acquire()
    work = SimpleNamespace(wait=done.acquire)  # waits outside of Python, as torch's own does
    thread = threading.Thread(target=call, args=(work,), daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + 2.0
        while time.monotonic() < deadline and thread.is_alive():
            assert thread.ident is not None
            if is_waiting(thread.ident, WAITS_IN):
                return True
            time.sleep(0.01)
        return False
    finally:
        while thread.is_alive():  # some wait several times
            with contextlib.suppress(RuntimeError):
                done.release()
            thread.join(0.01)


def finish_exchange(work: Any) -> None:
    exchange: Any = SimpleNamespace(_work=work, _values=torch.zeros(20, dtype=torch.int64), _ranks_per_sample=1)
    StepExchange.finish(exchange)


def finish_urgent_stop(work: Any) -> None:
    UrgentStop.finish(SimpleNamespace(_work=work, _votes=torch.tensor(0)))  # type: ignore[arg-type]


def gather_across_hosts(work: Any) -> None:
    group: Any = SimpleNamespace(size=lambda: 2, rank=lambda: 0)
    whole, part = torch.zeros(4), torch.ones(2)
    AllGather()(whole, part, group)


@pytest.mark.parametrize("call", [finish_exchange, finish_urgent_stop, gather_across_hosts])
def test_a_rank_waits_where_a_step_waits_for_others(
    call: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(work: Any) -> None:
        for collective in ("all_reduce", "isend", "irecv"):
            monkeypatch.setattr(dist, collective, lambda *_, **__: work)
        call(work)

    assert is_seen_to_wait(begin)


def test_a_rank_that_does_anything_else_does_not_wait() -> None:
    assert not is_seen_to_wait(lambda work: work.wait())


@pytest.mark.parametrize("module", [dist.distributed_c10d, dist.fsdp])
def test_torch_s_collectives_are_where_they_are_looked_for(module: Any) -> None:
    assert board._COLLECTIVES in module.__file__
    assert torch._ops.__file__.endswith(board._OPERATORS)


def test_nodes_that_share_a_host_take_different_gpus_and_without_gpus_the_cpu_computes() -> None:
    places = [place(rank, 4, nproc_per_node=2) for rank in range(4)]
    assert [choose_device(here, gpus=4) for here in places] == [torch.device("cuda", i) for i in range(4)]
    assert choose_device(places[1], gpus=0) == torch.device("cpu")
    for here in places:
        with pytest.raises(ConfigError, match="4 ranks on this host, which has 1 GPUs"):
            choose_device(here, gpus=1)


def _reduce_without_rank_1(rank: int) -> bool:
    dist.barrier()
    if rank == 1:
        os._exit(1)
    try:
        dist.all_reduce(torch.ones(1000))
    except RuntimeError as error:
        return is_lost_peer(error)
    return False


def test_a_collective_without_its_peer_fails_as_such() -> None:
    assert in_a_group(3, _reduce_without_rank_1, may_die=True) == [True, KILLED, True]


@pytest.mark.parametrize("error", [RuntimeError("size mismatch"), ValueError("Broken pipe"), KeyError("x")])
def test_other_errors_are_causes(error: Exception) -> None:
    assert not is_lost_peer(error)
