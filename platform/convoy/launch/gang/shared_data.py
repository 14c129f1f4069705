"""Data that a gang prepares itself: node 0 does, and the other nodes wait for it."""

import json
import os
import time
from collections.abc import Callable
from typing import Any

from convoy.config.json_text import parse_json
from convoy.gang.task import Node
from convoy.job.generations import FormationRefusedError, refusal_of
from convoy.storage import ObjectMissing, Store

WAIT_SECONDS = 6 * 3600.0
"""For node 0 to read and tokenise a corpus. Where Metaflow runs a gang, it ends with node 0's task."""

POLL_SECONDS = 0.5

Json = dict[str, Any]


def prepared_by_first(store: Store, node: Node, prepare: Callable[[], Json], seconds: float = WAIT_SECONDS) -> Json:
    """What `prepare` gives on node 0, on all nodes. Raises what it raises, on the others FormationRefusedError with the
    text of that, and TimeoutError.

    store: the job's.
    """
    name = f"prepared/{node.formation}.json"
    if node.index == 0:
        made = prepare()
        store.write(name, json.dumps(made).encode())
        return made
    deadline, parent = time.monotonic() + seconds, os.getppid()
    while time.monotonic() < deadline:
        try:
            prepared: Json = parse_json(store.read(name))
            return prepared
        except ObjectMissing:
            pass
        refused = refusal_of(store, node.formation)
        if refused is not None:
            raise FormationRefusedError(refused)
        if node.shares_host and os.getppid() != parent:  # there node 0's process has started this one
            raise FormationRefusedError("node 0 ended before it had prepared the data")
        time.sleep(POLL_SECONDS)
    raise TimeoutError(f"node 0 prepared no data within {seconds:.0f} s")
