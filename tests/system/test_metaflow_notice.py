"""Metaflow's own monitor of spot instances, unchanged, at the address that it asks, and what we make of its file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.system

# The monitor's address and its file's path are fixed: a network of its own, and a /tmp that keeps nothing.
APART = """
set -e
ip link set lo up
ip addr add 169.254.169.254/32 dev lo
mount -t tmpfs none /mnt
mkdir /mnt/upper /mnt/work
mount -t overlay -o lowerdir=/tmp,upperdir=/mnt/upper,workdir=/mnt/work none /tmp
exec "$@"
"""

PROGRAM = """
import json, time
from metaflow.plugins.kubernetes.spot_monitor_sidecar import SpotTerminationMonitorSidecar
from convoy.config.train import NoticesConfig
from convoy.drills.testbed.imds import ImdsStandIn
from convoy.gang.notices.notice import Poller
from convoy.gang.notices.sources import NOTICE_FILE, SignalSource, machine_sources
from convoy.gang.stop_signals import EndingSignals

with ImdsStandIn("169.254.169.254", 80) as server, EndingSignals() as flag:
    sources = [*machine_sources({}, NoticesConfig(), NOTICE_FILE), SignalSource(flag, 30)]
    with Poller(sources, poll_seconds=0.1) as poller:
        answering = [status.source for status in poller.await_first_round() if status.answers]
        server.announce_interruption(lead_seconds=120)
        due = time.time() + 120
        monitor = SpotTerminationMonitorSidecar()
        notices = [poller.notices.get(timeout=20) for _ in range(3)]
        monitor.is_alive = False
    left = {notice.source: notice.deadline - due for notice in notices}
    print(json.dumps({"answering": answering, "left": left}))
"""


def test_metaflow_s_monitor_writes_the_file_that_we_read() -> None:
    done = subprocess.run(
        ["unshare", "-n", "-m", "sh", "-c", APART, "sh", sys.executable, "-c", PROGRAM],
        cwd=REPOSITORY,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "USER": "test", "MF_PATHSPEC": "F/1/train/2", "MF_ATTEMPT": "0"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["answering"] == ["spot", "rebalance", "signal"]
    assert told["left"]["spot"] == pytest.approx(0, abs=8)
    assert told["left"]["metaflow"] == pytest.approx(0, abs=8)
    assert told["left"]["sigterm"] == pytest.approx(-85, abs=12)
