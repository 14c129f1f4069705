"""The process of an Agent: its options are one JSON argument; orders come, and what it sees goes, as lines of JSON.

Options: token, node, nodes, host of node 0; of any node but 0 also its port; skew: seconds by which its clock is ahead.
"""

import json
import os
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

from convoy.gang.network.formation import PeerJoined
from convoy.gang.network.peers import Peers
from convoy.gang.network.sockets import listen


def tell(kind: str, **fields: Any) -> None:
    print(json.dumps({**fields, "kind": kind, "at": time.monotonic()}, default=str), flush=True)


def obey(peers: Peers) -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "close":
            peers.close()
            os._exit(0)
        peers.send(order["to"], order["body"])
    os._exit(1)  # who started it is gone


def main(options: dict[str, Any]) -> None:
    real = time.time
    time.time = lambda: real() + options.get("skew", 0.0)
    size = {"nodes": options["nodes"], "nproc": 1}
    if options["node"] == 0:
        listener = listen(options["host"])
        tell("Listening", port=listener.getsockname()[1])
        peers = Peers.lead(listener, options["token"], **size, join_seconds=30.0)
    else:
        peers = Peers.join((options["host"], options["port"]), options["token"], node=options["node"], **size)
    threading.Thread(target=obey, args=(peers,), daemon=True).start()
    while True:
        event = peers.events.get()
        warning = event.skew.warning(event.node, options["node"]) if isinstance(event, PeerJoined) else None
        tell(type(event).__name__, **{**asdict(event), **({"warning": warning} if warning else {})})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
