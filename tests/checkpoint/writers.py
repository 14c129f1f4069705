"""Writer processes of a tiny state, for tests: asked like a gang's, and their reports awaited with a deadline."""

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from convoy.checkpoint.messages import Report, WriterSetup
from convoy.checkpoint.save.writer_client import WriterProcess
from convoy.config.checkpoint import StoreConfig
from tests.checkpoint.torchless import TinyState

WAIT_SECONDS = 30.0

R = TypeVar("R", bound=Report)


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until, "it did not come true in time"
        time.sleep(0.01)


class Writers:
    """The writer processes of a gang, each with its staged bytes in a file."""

    def __init__(
        self, folder: Path, tiers: list[str], state: TinyState, store: StoreConfig | None = None, **setup: Any
    ) -> None:
        """tiers: URIs, the root first; a write may go to another place too. setup: further fields of WriterSetup."""
        self.state = state
        self.session = 0
        self._folder = folder
        whole = WriterSetup(tiers=tiers, store=store or StoreConfig(), keep_last=1, keep_every_steps=None, **setup)
        self.processes = [WriterProcess(whole) for _ in range(state.writers)]
        self.reports: list[list[Report]] = [[] for _ in self.processes]
        for process in self.processes:
            process.start()
        for writer, process in enumerate(self.processes):
            process.send(state.layout(writer))

    def write(self, tier: str, writer: int, step: int, /, *, attempt: str = "a", **changed: object) -> None:
        """Stage a part and ask its writer for it. changed: fields of the request that are to be different."""
        attempt = f"{self.session}-{attempt}"
        buffer = self._folder / f"{step}-{attempt}-{writer}"
        buffer.write_bytes(self.state.data(writer, step))
        request = self.state.request(tier, writer, step, attempt=attempt)
        self.processes[writer].send(request.model_copy(update={"buffer": str(buffer), **changed}))

    def begin(self) -> None:
        """Forget what was asked before: reports of it that are still to come are passed over."""
        self.session += 1
        self.reports = [[] for _ in self.processes]

    def await_report(self, writer: int, kind: type[R]) -> R:
        """The first report of that kind from the writer; earlier ones stay in `reports`."""
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            for report in self.reports[writer]:
                if isinstance(report, kind):
                    self.reports[writer].remove(report)
                    return report
            select.select([self.processes[writer]], [], [], 1.0)
            self.reports[writer] += filter(self._is_new, self.processes[writer].poll())
            assert self.processes[writer].alive(), f"writer {writer} ended; it told {self.reports[writer]}"
        raise AssertionError(f"no {kind.__name__} from writer {writer}, but {self.reports[writer]}")

    def _is_new(self, report: Report) -> bool:
        return getattr(report, "attempt", f"{self.session}-").startswith(f"{self.session}-")


@contextmanager
def writers(
    folder: Path, tiers: list[str], state: TinyState | None = None, store: StoreConfig | None = None, **setup: Any
) -> Iterator[Writers]:
    """Writer processes that are gone afterwards."""
    gang = Writers(folder, tiers, state or TinyState(), store, **setup)
    try:
        yield gang
    finally:
        for process in gang.processes:
            process.abandon()
