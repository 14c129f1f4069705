"""NIXL's agents: one that this thread owns, and one that a proxy thread owns and serves from a queue.

An agent is for one thread: its calls are not synchronised. NIXL is the extra `rdma`; it is imported here alone.
"""

import logging
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from convoy.network.one_sided.times import TransferOperation

PIP = "pip install 'metaflow-convoy[rdma]'"

DEADLINE_SECONDS = 120.0
"""A transfer that has not been acknowledged by then never will be."""

Nixl = Any
"""NIXL's package, which has no types."""


class TransferError(RuntimeError):
    """NIXL refused or lost a transfer."""


@dataclass(frozen=True)
class RemoteMemory:
    """The data that another rank needs to reach an agent's memory."""

    metadata: bytes
    address: int
    device: int


def import_nixl() -> Nixl:
    """Import NIXL's package. Raises ImportError, whose text says how to install it."""
    try:
        import nixl_cu12
    except ImportError as error:
        raise ImportError(f"NIXL cannot be imported ({error}): {PIP}") from None
    logging.getLogger("nixl").setLevel(os.environ.get("NIXL_LOG_LEVEL", "WARNING").replace("TRACE", "DEBUG"))
    return nixl_cu12


class Agent:
    """An agent and the memory that it registered. All calls come from one thread, `close` included."""

    def __init__(self, nixl: Nixl, name: str, backend: str, memory: torch.Tensor, *, answers: bool) -> None:
        """memory: contiguous bytes. answers: by a progress thread of NIXL's own, where the NIC does not answer; an
        agent that polls makes progress with each poll. Raises what NIXL raises, such as for a backend without a device.
        """
        config = nixl.nixl_agent_config(backends=[backend], enable_prog_thread=answers, capture_telemetry=True)
        self._agent = nixl.nixl_agent(name, config)
        if backend not in self._agent.backends:
            raise TransferError(f"this installation of NIXL has no backend {backend}")
        self._memory = memory
        self._registered = self._agent.register_memory(memory)
        self._device = max(0, memory.get_device())
        self._segment = "DRAM" if memory.get_device() < 0 else "VRAM"
        self._peer = ""

    @property
    def remote_memory(self) -> RemoteMemory:
        """The description of this agent's memory for the rank at the other end."""
        return RemoteMemory(self._agent.get_agent_metadata(), self._memory.data_ptr(), self._device)

    def connect(self, remote: RemoteMemory) -> None:
        """Connect to another agent, whose memory is then the remote end of transfers."""
        self._peer = self._agent.add_remote_agent(remote.metadata)

    def prepare(self, operation: TransferOperation, remote: RemoteMemory, offset: int, size: int) -> Any:
        """Prepare a transfer of `size` bytes at the same byte offset of both memories. It can be posted repeatedly."""
        local = self._agent.get_xfer_descs([(self._memory.data_ptr() + offset, size, self._device)], self._segment)
        there = self._agent.get_xfer_descs([(remote.address + offset, size, remote.device)], self._segment)
        return self._agent.initialize_xfer(operation, local, there, self._peer)

    def post(self, transfer: Any) -> bool:
        """Post a transfer; returns whether it is done already. Raises TransferError."""
        return self._is_done(self._agent.transfer(transfer))

    def is_done(self, transfer: Any) -> bool:
        """Whether a posted transfer has been acknowledged by the other end. Raises TransferError."""
        return self._is_done(self._agent.check_xfer_state(transfer))

    def reported_seconds(self, transfer: Any) -> tuple[float, float]:
        """NIXL's times of a completed transfer, in seconds: of the post, and from the post to the completion."""
        telemetry = self._agent.get_xfer_telemetry(transfer)
        return 1e-6 * float(telemetry.postDuration), 1e-6 * float(telemetry.xferDuration)

    def blocking(self, transfers: Sequence[Any]) -> None:
        """Post each transfer and wait for it before the next is posted. Raises TransferError."""
        for transfer in transfers:
            done, deadline = self.post(transfer), time.monotonic() + DEADLINE_SECONDS
            while not done:
                done = self.is_done(transfer)
                _yield_until(deadline)

    def windowed(self, transfers: Sequence[Any], window: int) -> None:
        """Post transfers with at most `window` of them in flight, and wait for them in their order.

        The same prepared transfer may occur again `window` or more places later. Raises TransferError.
        """
        flying: deque[Any] = deque()
        for transfer in transfers:
            if len(flying) == window:
                self._await(flying.popleft())
            self.post(transfer)
            flying.append(transfer)
        while flying:
            self._await(flying.popleft())

    def close(self, transfers: Sequence[Any] = ()) -> None:
        """Release the transfers, the connection and the memory, in the order that UCX requires."""
        for transfer in transfers:
            transfer.release()
        if self._peer:
            self._agent.remove_remote_agent(self._peer)
        self._agent.deregister_memory(self._registered)
        del self._agent

    def _await(self, transfer: Any) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not self.is_done(transfer):
            _yield_until(deadline)

    @staticmethod
    def _is_done(state: str) -> bool:
        if state == "ERR":
            raise TransferError("NIXL reports that a transfer failed")
        return state == "DONE"


def _yield_until(deadline: float) -> None:
    """Yield the core between two polls to the target's progress thread, if both ranks share a host.

    deadline: value of the monotonic clock after which TransferError is raised.
    """
    os.sched_yield()
    if time.monotonic() > deadline:
        raise TransferError(f"a transfer was not acknowledged within {DEADLINE_SECONDS:.0f} s")


@dataclass
class _Submitted:
    number: int
    at: float
    future: "Future[float]"


class ProxyThread:
    """A thread that owns an agent. Any other thread submits transfers, and waits for their futures.

    The thread polls while transfers are in flight, and otherwise waits for the queue. It yields the interpreter's lock
    with each poll, or the submitting thread would get it only once in `sys.getswitchinterval()`.
    """

    def __init__(self, make: Callable[[], tuple[Agent, Sequence[Any]]], window: int) -> None:
        """make: called in the thread; returns the agent and its prepared transfers. Raises what it raises."""
        self._window = window
        self._queue: queue.SimpleQueue[_Submitted | None] = queue.SimpleQueue()
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._serve, args=(make, ready), name="convoy-nixl", daemon=True)
        self._thread.start()
        ready.result(DEADLINE_SECONDS)

    def submit(self, number: int) -> "Future[float]":
        """Have a prepared transfer posted, by its index.

        The future completes with the transfer. Its value: seconds until the thread took the transfer from the queue.
        """
        submitted = _Submitted(number, time.perf_counter(), Future())
        self._queue.put(submitted)
        return submitted.future

    def close(self) -> None:
        """Wait for all submitted transfers, and close the agent in its thread."""
        self._queue.put(None)
        self._thread.join(DEADLINE_SECONDS)

    def _serve(self, make: Callable[[], tuple[Agent, Sequence[Any]]], ready: "Future[None]") -> None:
        try:
            agent, transfers = make()
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(None)
        waiting: deque[tuple[_Submitted, float]] = deque()
        flying: deque[tuple[_Submitted, float]] = deque()
        is_open = True
        while is_open or waiting or flying:
            is_open = self._take(waiting, wait=not (waiting or flying)) and is_open
            try:
                self._post(agent, transfers, waiting, flying)
                while flying and agent.is_done(transfers[flying[0][0].number]):
                    submitted, took = flying.popleft()
                    submitted.future.set_result(took)
            except Exception as error:  # NIXL's own errors share no class
                for submitted, _ in (*flying, *waiting):
                    submitted.future.set_exception(error)
                waiting.clear()
                flying.clear()
            time.sleep(0)
        agent.close(transfers)

    def _take(self, waiting: "deque[tuple[_Submitted, float]]", *, wait: bool) -> bool:
        """Take all submissions from the queue; returns whether more may follow."""
        while True:
            try:
                submitted = self._queue.get(block=wait)
            except queue.Empty:
                return True
            if submitted is None:
                return False
            waiting.append((submitted, time.perf_counter() - submitted.at))
            wait = False

    def _post(
        self,
        agent: Agent,
        transfers: Sequence[Any],
        waiting: "deque[tuple[_Submitted, float]]",
        flying: "deque[tuple[_Submitted, float]]",
    ) -> None:
        while waiting and len(flying) < self._window:
            agent.post(transfers[waiting[0][0].number])
            flying.append(waiting.popleft())
