"""A store whose every call ends in time: for whoever only looks there in passing, and must not hang where it does."""

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, cast

from convoy.storage import Store, StoreUnavailable


def bounded(store: Store, seconds: float) -> Store:
    """The store, but that a call which takes longer raises StoreUnavailable. For small objects and listings."""
    return cast(Store, _Bounded(store, seconds))


class _Bounded:
    """Each call is made by a thread of its own. One that hangs is left behind, and until it ends no other is begun."""

    def __init__(self, store: Store, seconds: float) -> None:
        self.uri = store.uri
        self._store = store
        self._seconds = seconds
        self._hangs: Future[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return functools.partial(self._ask, getattr(self._store, name))

    def _ask(self, call: Callable[..., Any], *args: Any) -> Any:
        error = StoreUnavailable(f"{self.uri}: did not answer within {self._seconds:g} s")
        if self._hangs is not None and not self._hangs.done():
            raise error
        answer: Future[Any] = Future()
        threading.Thread(target=_answer, args=(answer, call, *args), name=f"ask {self.uri}", daemon=True).start()
        try:
            return answer.result(self._seconds)
        except TimeoutError:
            self._hangs = answer
            raise error from None


def _answer(answer: "Future[Any]", call: Callable[..., Any], *args: Any) -> None:
    try:
        answer.set_result(call(*args))
    except BaseException as error:
        answer.set_exception(error)
