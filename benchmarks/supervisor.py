"""The work of a node's agent while its one worker trains, for `overhead.py supervision`. Only a signal ends it.

    python benchmarks/supervisor.py NODE NODES WORKER_PID PORT

The agents' token is in its environment, which only its user may read.
It prints where its board is and where it listens, and then that it is connected with all others, as lines of JSON.
PORT: where node 0 listens, on this host; 0 on node 0 itself. Imports no torch.
"""

import json
import os
import sys
import time

from convoy.config.train import NoticesConfig
from convoy.gang.diagnosis.hang_detector import HangDetector, find_hang
from convoy.gang.network.formation import GangFormed, PeersFailed
from convoy.gang.network.peers import Peers
from convoy.gang.network.sockets import listen
from convoy.gang.notices.notice import Poller
from convoy.gang.notices.sources import machine_sources
from convoy.gang.workers.board import Board
from convoy.gang.workers.processes import state_of

TOKEN = "CONVOY_BENCHMARK_TOKEN"

LOOK_SECONDS = 0.1
JOIN_SECONDS = 60.0


def main() -> None:
    node, nodes, worker, port = map(int, sys.argv[1:5])
    token = os.environ[TOKEN]
    board, patience, config = Board.create(1), HangDetector(), NoticesConfig()
    if port == 0:
        listener = listen("127.0.0.1")
        port = listener.getsockname()[1]
        peers = Peers.lead(listener, token, nodes=nodes, nproc=1, join_seconds=JOIN_SECONDS)
    else:
        peers = Peers.join(("127.0.0.1", port), token, node=node, nodes=nodes, nproc=1)
    print(json.dumps({"board": board.path, "port": port}), flush=True)
    with peers, Poller(machine_sources(os.environ, config), config.poll_seconds) as poller:
        while not isinstance(event := peers.events.get(timeout=JOIN_SECONDS), GangFormed):
            if isinstance(event, PeersFailed):
                raise SystemExit(event.reason)
        print(json.dumps({"formed": True}), flush=True)
        while True:
            time.sleep(LOOK_SECONDS)
            marks, now = {0: board.read(0)}, time.monotonic()
            patience.learn_from(marks, now)
            find_hang(marks, now, patience)
            state_of(worker)
            for queue in (peers.events, poller.notices):
                while not queue.empty():
                    queue.get()


if __name__ == "__main__":
    main()
