"""What workers print, put to a root that takes no files that grow: again and again while they run, and at the end."""

import contextlib
import threading
from pathlib import Path

from convoy.gang.async_call import Background
from convoy.job.rank_logs import LOGS
from convoy.storage import Store, StoreUnavailable

KEEP_SECONDS = 15.0

SMALL_BYTES = 8 * 2**20
"""A larger log is put again only when it has grown by a quarter: each time the whole of it goes."""

LAST_SECONDS = 60.0
"""For what is left when the agent leaves."""


class KeptLogs:
    """Use as a context that is left when no worker prints any more."""

    def __init__(self, store: Store, folder: Path, keep_seconds: float = KEEP_SECONDS) -> None:
        """folder: of this machine, with the logs under the names that they have in the job's root."""
        self._store = store
        self._folder = folder
        self._keep_seconds = keep_seconds
        self._kept: dict[str, int] = {}
        """Bytes of each log that are in the root."""
        self._left = threading.Event()
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> "KeptLogs":
        threading.Thread(target=self._run, name="the workers' output", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        with contextlib.suppress(StoreUnavailable):  # what is done last may not hide how the gang ended
            Background("the workers' output", lambda: self._keep(least_growth=0.0), LAST_SECONDS).result()

    def _run(self) -> None:
        while not self._left.wait(self._keep_seconds):
            with contextlib.suppress(StoreUnavailable):  # the next time again
                self._keep(least_growth=0.25)

    def _keep(self, least_growth: float) -> None:
        """Put the logs that have grown, the large ones by that share at least. Raises StoreUnavailable."""
        with self._one_at_a_time:
            for path in sorted((self._folder / LOGS).rglob("*.log")):
                name = path.relative_to(self._folder).as_posix()
                kept = self._kept.get(name, -1)
                grown = path.stat().st_size - kept
                if grown > (least_growth * kept if kept > SMALL_BYTES else 0):
                    data = path.read_bytes()
                    self._store.write(name, data)
                    self._kept[name] = len(data)
