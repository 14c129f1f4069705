"""What keeps a gang from coming together that node 0's agent does not see: a node whose process ended before it joined.

Without it node 0 would wait until a node may no longer come, which is long: its machine may not have been there yet.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from convoy.gang.async_call import Background
from convoy.gang.task import Node
from convoy.job.generations import refusal_of
from convoy.storage import Store, StoreUnavailable

ASK_SECONDS = 2.0
"""Between two questions to the store."""

ANSWER_SECONDS = 10.0
"""For each; a store that hangs tells nothing."""


class Hindrance:
    """Asked a few times a second while node 0 waits for the others. Waits for nothing itself."""

    def __init__(self, store: Store, node: Node) -> None:
        """store: the job's."""
        self._store = store
        self._node = node
        self._asking: Background[str | None] | None = None
        self._ask_at = time.monotonic() + ASK_SECONDS

    def __call__(self) -> str | None:
        """Why the gang will not come together, in one line; None: nothing is known."""
        if not self._node.leads:
            return None  # the others are told by node 0
        return (ended_sibling() if self._node.shares_host else None) or self._refused()

    def _refused(self) -> str | None:
        """What another node left in the store before it ended."""
        now = time.monotonic()
        if self._asking is None and now >= self._ask_at:
            formation, store = self._node.formation, self._store
            self._asking = Background("the refusal", lambda: refusal_of(store, formation), ANSWER_SECONDS)
        if self._asking is None or not self._asking.over:
            return None
        answer, self._asking, self._ask_at = self._asking, None, now + ASK_SECONDS
        try:
            return answer.result()
        except StoreUnavailable:
            return None


def ended_sibling() -> str | None:
    """On this host node 0's process starts the other nodes': one that ended otherwise than with success, in words."""
    for pid, code in _ended_children():
        if code:
            return f"the process of another node (pid {pid}) ended before it had joined: its own lines above tell why"
    return None


def _ended_children() -> Iterator[tuple[int, int]]:
    """Children that nobody has asked for yet, and their wait status. Those that lead a session are not Metaflow's."""
    ours = os.getpid()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        pid, state, parent, session = int(folder.name), fields[0], int(fields[1]), int(fields[3])
        if state == "Z" and parent == ours and session != pid:
            yield pid, int(fields[49])  # exit_code, see proc(5)
