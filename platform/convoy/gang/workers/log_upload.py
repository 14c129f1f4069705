"""Uploads what workers print to a root that takes no growing files: repeatedly while they run, and at the end."""

import contextlib
import threading
from pathlib import Path

from convoy.gang.async_call import BackgroundCall
from convoy.job.rank_logs import LOGS
from convoy.storage import Store, StoreUnavailable

UPLOAD_SECONDS = 15.0

SMALL_BYTES = 8 * 2**20
"""A larger log is uploaded again only when it has grown by a quarter: each upload is of the whole log."""

LAST_SECONDS = 60.0
"""For the last upload, when the agent leaves."""


class LogUpload:
    """Use as a context that is left when no worker prints any more."""

    def __init__(self, store: Store, folder: Path, upload_seconds: float = UPLOAD_SECONDS) -> None:
        """folder: on this machine, with the logs under their names in the job's root."""
        self._store = store
        self._folder = folder
        self._upload_seconds = upload_seconds
        self._uploaded: dict[str, int] = {}
        """Bytes of each log in the root."""
        self._left = threading.Event()
        self._one_at_a_time = threading.Lock()

    def __enter__(self) -> "LogUpload":
        threading.Thread(target=self._run, name="the workers' output", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        with contextlib.suppress(StoreUnavailable):  # a failed last step must not hide how the gang ended
            BackgroundCall("the workers' output", lambda: self._upload(least_growth=0.0), LAST_SECONDS).result()

    def _run(self) -> None:
        while not self._left.wait(self._upload_seconds):
            with contextlib.suppress(StoreUnavailable):  # the next upload tries again
                self._upload(least_growth=0.25)

    def _upload(self, least_growth: float) -> None:
        """Upload the logs that have grown, large ones by at least that share. Raises StoreUnavailable."""
        with self._one_at_a_time:
            for path in sorted((self._folder / LOGS).rglob("*.log")):
                name = path.relative_to(self._folder).as_posix()
                uploaded = self._uploaded.get(name, -1)
                grown = path.stat().st_size - uploaded
                if grown > (least_growth * uploaded if uploaded > SMALL_BYTES else 0):
                    data = path.read_bytes()
                    self._store.write(name, data)
                    self._uploaded[name] = len(data)
