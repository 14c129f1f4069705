"""A short check before the first step: a bad machine is named, and the gang does not train at its speed.

All ranks do the same at once: matrix products, and exchanges with their neighbours, of which a ring all-reduce is made.
A rank that is clearly slower than the others, twice, is unfit (`gang/diagnosis/node_health.py`).
"""

import time
import zlib

import torch
import torch.distributed as dist

from convoy.gang.diagnosis.node_health import ROUNDS, RankMeasurement, partner, unfit_ranks
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import NodeChecked
from convoy.parallel.fsdp import DTYPES
from convoy.training.measure.machine import device_name, random_tensor, synchronize
from convoy.training.process_groups import Ranks

AGAIN = 5
"""Length of the second round, in rounds of the first; it only takes place if a rank seems unfit."""

MIN_PRODUCTS = 8
"""The best of fewer may have been disturbed, each of them."""

EXCHANGES = 3
"""With either neighbour, in the first round."""

_SIDE = {"cpu": 384, "cuda": 8192}
_LINK_BYTES = {"cpu": 2**20, "cuda": 2**25}


class NodeUnfitError(RuntimeError):
    """This rank's machine is not fit to train; the text is one line."""


def check_node(ranks: Ranks, param_dtype: str, seconds: float, events: EventWriter) -> None:
    """Check all ranks, for about so long. All ranks call it.

    Raises NodeUnfitError on a rank that is unfit, and what a lost peer raises on the others.
    """
    if ranks.place.world_size < 2 or seconds == 0:
        return
    began = time.perf_counter()
    measured = _measure_ranks(ranks, param_dtype, seconds, EXCHANGES)
    problems = unfit_ranks(measured)
    if problems:
        again = unfit_ranks(_measure_ranks(ranks, param_dtype, AGAIN * seconds, AGAIN * EXCHANGES))
        problems = {rank: again[rank] for rank in problems if rank in again}
    own, problem = measured[ranks.place.rank], problems.get(ranks.place.rank, "")
    kind = ranks.device.type
    events.append(
        NodeChecked(
            seconds=time.perf_counter() - began,
            matmul_tflops=2 * _SIDE[kind] ** 3 / own.matmul_seconds / 1e12 if own.matmul_seconds else None,
            link_bytes_per_second=_LINK_BYTES[kind] / own.link_seconds if own.link_seconds else None,
            problem=problem,
        )
    )
    if problem:
        raise NodeUnfitError(problem)
    if problems:
        dist.barrier(group=ranks.control)  # which an unfit rank does not reach


def _measure_ranks(ranks: Ranks, param_dtype: str, seconds: float, exchanges: int) -> list[RankMeasurement]:
    """The measurements of every rank, the same on all."""
    name = device_name(ranks.device)
    own = [
        float(zlib.crc32(name.encode())),
        _matmul_seconds(ranks, param_dtype, seconds),
        _exchange_seconds(ranks, exchanges),
    ]
    gathered = [torch.zeros(len(own), dtype=torch.float64) for _ in range(ranks.place.world_size)]
    dist.all_gather(gathered, torch.tensor(own, dtype=torch.float64), group=ranks.control)
    rows = [row.tolist() for row in gathered]
    return [RankMeasurement(f"{device:.0f}", ranks.device.type, product, link) for device, product, link in rows]


def _matmul_seconds(ranks: Ranks, param_dtype: str, seconds: float) -> float:
    """Best time of a matrix product, while every rank does the same.

    On a CPU it is the thread's time on a core: ranks that share cores are not slow for it, a throttled core is.
    """
    kind, side = ranks.device.type, _SIDE[ranks.device.type]
    dtype = DTYPES[param_dtype] if kind == "cuda" else torch.float32
    a = random_tensor(ranks.device, dtype, side, side)
    out = torch.mm(a, a)
    dist.barrier(group=ranks.control)
    best, deadline, done = float("inf"), time.perf_counter() + seconds, 0
    while time.perf_counter() < deadline or done < MIN_PRODUCTS:
        began = _read_core_clock(ranks.device)
        torch.mm(a, a, out=out)
        best, done = min(best, _read_core_clock(ranks.device) - began), done + 1
    return best


def _read_core_clock(device: torch.device) -> float:
    synchronize(device)
    return time.perf_counter() if device.type == "cuda" else time.thread_time()


def _exchange_seconds(ranks: Ranks, exchanges: int) -> float:
    """Best time of an exchange with a neighbour, the better of both neighbours; 0: not measured.

    With fewer than three ranks it would not be known whose fault a slow link is. Neighbours are on other nodes where
    there are three nodes.
    """
    place, kind = ranks.place, ranks.device.type
    if place.world_size < 3:
        return 0.0
    nodes_apart = place.nproc_per_node if place.nodes > 2 else 1
    position, offset = divmod(place.rank, nodes_apart)
    out = torch.ones(_LINK_BYTES[kind], dtype=torch.uint8, device=ranks.device)
    into = torch.empty_like(out)
    best = float("inf")
    for number in range(ROUNDS * exchanges):
        peer = partner(position, place.world_size // nodes_apart, number % ROUNDS)
        dist.barrier(group=ranks.control)
        began = time.perf_counter()
        if peer is not None:
            _exchange_with(ranks, out, into, peer * nodes_apart + offset)
            best = min(best, time.perf_counter() - began)
    return best


def _exchange_with(ranks: Ranks, out: torch.Tensor, into: torch.Tensor, peer: int) -> None:
    if ranks.device.type == "cuda":
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, into, peer)]):
            work.wait()
        synchronize(ranks.device)
        return
    for pending in (dist.irecv(into, peer, group=ranks.control), dist.isend(out, peer, group=ranks.control)):
        assert pending is not None
        pending.wait()
