"""What drills make of this machine: file systems that are full for as long as they are to be, and networks."""

import subprocess
import time
from pathlib import Path

import pytest

from convoy.drills.testbed.mounts import MIB, Disk, always_full_disk, mounted_tmpfs
from convoy.drills.testbed.namespaces import Network
from tests.gang.tasks import wait_for

pytestmark = pytest.mark.system


def full(folder: Path) -> bool:
    """Whether not even a page can be written."""
    little = folder / "little"
    try:
        little.write_bytes(bytes(4096))
    except OSError:
        return True
    finally:
        little.unlink(missing_ok=True)
    return False


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_a_hoarder_takes_what_others_give_back(tmp_path: Path, kind: str) -> None:
    with mounted_tmpfs(tmp_path / "memory", megabytes=64) as memory, Disk(tmp_path) as disk:
        folder = memory if kind == "tmpfs" else disk.path
        (folder / "given back").write_bytes(bytes(8 * MIB))
        with always_full_disk(folder):
            assert full(folder)
            (folder / "given back").unlink()
            wait_for("the end of the room", lambda: full(folder))
        (folder / "much").write_bytes(bytes(32 * MIB))
        assert not (folder / "filler").exists()


def test_filling_takes_moments(tmp_path: Path) -> None:
    with mounted_tmpfs(tmp_path / "memory", megabytes=256) as memory:
        began = time.monotonic()
        with always_full_disk(memory):
            assert time.monotonic() - began < 20.0


def test_a_network_that_cannot_be_made_leaves_nothing() -> None:
    network = Network(2, mtu=1)
    with pytest.raises(RuntimeError, match=r"mtu 1 .*Invalid argument"):
        network.__enter__()
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, timeout=20, check=True).stdout
    assert network.command_prefix(0)[-1] not in listed.split()
