"""Actors that share a store in memory, one operation at a time, in whatever order a test says.

Each actor is a thread that runs the library's own code; before every operation on its view of the store it waits for
its turn. So an interleaving is a list of turns, and the same list gives the same run.
"""

import threading
from collections.abc import Callable
from typing import Any

from convoy.storage import Store
from tests.storage import memory

OPERATIONS = ("create", "write", "read", "sizes", "listing", "put", "read_into", "delete", "now")


class Killed(BaseException):
    """What an actor's operations raise once it was killed: nothing it has left to do is done."""


class MemoryStore(memory.MemoryStore):
    """A Store with objects of its own, whose clock goes on when told."""

    def __init__(self) -> None:
        super().__init__("memory")
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.clock = 1_000_000.0
        self.before_delete: Callable[[str], None] = lambda name: None

    def now(self) -> float:
        return self.clock

    def prove(self) -> None:
        pass

    def delete(self, name: str) -> None:
        self.before_delete(name)
        super().delete(name)


class Actor:
    """One thread, which runs only when it is stepped."""

    def __init__(self, store: MemoryStore, body: Callable[["Actor", Store], None]) -> None:
        self.done = False
        self.error: BaseException | None = None
        self.held = set[str]()
        """Its leases, and what it prunes just now."""
        self._killed = False
        self._turn, self._idle = threading.Semaphore(0), threading.Semaphore(0)
        self._view: Any = _View(store, self)
        self._body = body
        threading.Thread(target=self._run, daemon=True).start()

    def step(self) -> None:
        """Let it do one operation, and all that follows up to the next one."""
        if not self.done:
            self._turn.release()
            self._idle.acquire()

    def kill(self) -> None:
        self._killed = True
        self.step()

    def pause(self) -> None:
        if not self._killed:
            self._idle.release()
            self._turn.acquire()
        if self._killed:
            raise Killed

    def _run(self) -> None:
        self._turn.acquire()
        try:
            if not self._killed:
                self._body(self, self._view)
        except Killed:
            pass
        except BaseException as error:
            self.error = error
        self.done = True
        self._idle.release()


class _View:
    def __init__(self, store: MemoryStore, actor: Actor) -> None:
        self._store = store
        self._actor = actor
        self._lock = threading.Lock()  # pools of the library may ask at once

    def __getattr__(self, operation: str) -> Any:
        real = getattr(self._store, operation)
        if operation not in OPERATIONS:
            return real

        def in_turn(*args: Any) -> Any:
            with self._lock:
                self._actor.pause()
                assert operation != "put" or args[0] not in self._store.objects, f"{args[0]} is written twice"
                answer = real(*args)
                if args and args[0].startswith(("leases/", "removing/")):
                    if operation == "delete":
                        self._actor.held.discard(args[0])
                    elif operation == "write" or (operation == "create" and answer):
                        self._actor.held.add(args[0])
                return answer

        return in_turn
