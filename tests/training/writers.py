"""Writer processes for ranks that are forks of a test: forked too, for an interpreter's start would take longer than
the whole training; and a loop that waits for them, so that what is committed does not depend on the machine's speed."""

import os
import sys
import time

from convoy.checkpoint.save import writer_client
from convoy.checkpoint.save.queue import StatusCounts
from convoy.checkpoint.writer import post_commit
from convoy.checkpoint.writer.__main__ import main
from convoy.training.checkpointing.saver import Saver

DEADLINE_SECONDS = 30.0


class Forked:
    """What `subprocess.Popen` gives, of a fork of this process that runs the writer's `main`."""

    def __init__(self, command: list[str], **_: object) -> None:
        to_child, from_child = os.pipe(), os.pipe()
        self._code: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(to_child[0], 0)
            os.dup2(from_child[1], 1)
            for end in (*to_child, *from_child):
                os.close(end)
            sys.argv, sys.stdin = ["writer", command[-1]], os.fdopen(0)
            try:
                main()
            finally:
                os._exit(1)
        os.close(to_child[0])
        os.close(from_child[1])
        self.stdin, self.stdout = os.fdopen(to_child[1], "wb", 0), os.fdopen(from_child[0], "rb", 0)

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def kill(self) -> None:
        os.kill(self.pid, 9)


def fork_writers() -> None:
    """In this process, a rank."""

    class Subprocess:
        PIPE, Popen = None, Forked

    writer_client.subprocess = Subprocess  # type: ignore[assignment]
    post_commit.COPY_PAUSES_SECONDS = (0.01, 0.01)  # type: ignore[assignment]


def wait_for_each_save() -> None:
    """In this process, a rank: each step begins only when it is known what became of the save that is being written."""
    ask = Saver.status

    def status(self: Saver) -> StatusCounts:
        deadline = time.monotonic() + DEADLINE_SECONDS
        known = ask(self)
        while self._ranks.first and self._driver and self._driver.queue.under_way and not _settles(known):
            assert time.monotonic() < deadline, "the save under way did not settle"
            time.sleep(0.001)
            known = ask(self)
        return known

    Saver.status = status  # type: ignore[method-assign]


def _settles(known: StatusCounts) -> bool:
    return bool(known.failed or known.committed or known.superseded)
