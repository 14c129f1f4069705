"""Trackers of a job that runs: each has a thread and a process of its own, so that none delays training or another."""

import threading
import time
from collections.abc import Sequence

from convoy.config.errors import one_line
from convoy.config.trackers import TrackerConfig
from convoy.gang.async_call import say
from convoy.job.events.log import EventReader
from convoy.report.trackers.process import TrackerProcess
from convoy.report.trackers.sender import Sender, newest_rewind
from convoy.report.trackers.tracker import Ending, TrackedRun, tracker_key
from convoy.storage import Store

POLL_SECONDS = 10.0
"""Between two looks at the log."""

LONGEST_PAUSE_SECONDS = 300.0
"""After failures in a row; the first pause is as long as that between two looks."""

END_SECONDS = 10.0
"""At the end of the gang, for all trackers together, to be sent the rest."""

TROUBLED_SECONDS = 2.0
"""The same for a tracker that did not work when it was last called."""


class LiveTrackers:
    """Follow the log while a `with` block runs. `end` and `join` send the rest; without them nothing is waited for."""

    def __init__(
        self, configs: Sequence[TrackerConfig], store: Store, run: TrackedRun, poll_seconds: float = POLL_SECONDS
    ) -> None:
        """store: the job's."""
        self._followers = [_Follower(config, store, run, poll_seconds) for config in configs]

    def __enter__(self) -> "LiveTrackers":
        for follower in self._followers:
            follower.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for follower in self._followers:
            follower.stop()

    def end(self, ending: Ending) -> None:
        """Have the rest sent, now that the log is complete. Returns at once."""
        for follower in self._followers:
            follower.ending = ending
            follower.done.set()

    def join(self, seconds: float = END_SECONDS) -> None:
        """Wait until that is done, or for so long. A tracker that is not done by then is named in one line: it is sent
        what it missed when the job continues, or by `convoy replay`."""
        now = time.monotonic()
        for follower in self._followers:
            deadline = now + (min(seconds, TROUBLED_SECONDS) if follower.troubled else seconds)
            follower.thread.join(max(0.0, deadline - time.monotonic()))
            if not follower.complete:
                say(f"convoy: tracker {follower.kind}: has not got everything; the job's next attempt or "
                    "`convoy replay` sends the rest", error=True)  # fmt: skip


class _Follower:
    """One tracker's."""

    def __init__(self, config: TrackerConfig, store: Store, run: TrackedRun, poll_seconds: float) -> None:
        self._config, self._store, self._run, self._poll_seconds = config, store, run, poll_seconds
        self.kind = config.kind
        self._warned = False
        self._stopped = False
        self.troubled = False
        """The last call failed, or takes long."""
        self.complete = False
        """The tracker has the whole log, and its run is closed."""
        self._process: TrackerProcess | None = None
        self.ending: Ending = "interrupted"
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._follow, name=f"tracker {config.kind}", daemon=True)

    def stop(self) -> None:
        """End at once."""
        self._stopped = True
        self.done.set()
        process = self._process  # which the other thread may set to None just now
        if process is not None:
            process.kill()

    def _follow(self) -> None:
        pause = self._poll_seconds
        while not self._stopped:
            last = self.done.is_set()
            try:
                self._follow_from_the_start()
                return
            except Exception as error:
                self._warn(one_line(error))
            finally:
                self._end_process()
            if last:
                return
            self.done.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _follow_from_the_start(self) -> None:
        """Until the end of the gang. What the tracker has already it says itself, so the log is read anew each time."""
        self._process = process = TrackerProcess(self._config, self._warn)
        run = self._run.model_copy(update={"branch": newest_rewind(self._store)})
        sender = Sender(process, run, self._store, tracker_key(self._config))
        reader = EventReader(self._store)
        while True:
            final = self.done.is_set()  # before the log is read, which is complete then
            sender.send(reader.poll(), final=final)
            self.troubled = False
            if final:
                sender.close(self.ending)
                self.complete = True
                return
            self.done.wait(self._poll_seconds)

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None

    def _warn(self, why: str) -> None:
        self.troubled = True
        if not self._warned and not self._stopped:
            self._warned = True
            say(f"convoy: tracker {self._config.kind}: {why}; training continues, and what it misses is sent later",
                error=True)  # fmt: skip
