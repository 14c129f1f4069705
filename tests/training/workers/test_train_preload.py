"""What ranks are forked from: everything is imported, and there is nothing that a fork would break."""

import json
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import json, os, sys
from convoy.training.workers.train_preload import LATE, SOON, TrainingBody
before = "torch" in sys.modules
body = TrainingBody()
body.prepare()
body.prepare_more()
torch = sys.modules["torch"]
files = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd") if int(name) > 2]
print(json.dumps({
    "before": before,
    "failed": str(body._failed),
    "imported": [name in sys.modules for name in (*SOON, *LATE, "convoy.training.rank")],
    "threads": len(os.listdir("/proc/self/task")),
    "children": open(f"/proc/self/task/{os.getpid()}/children").read().split(),
    "cuda": torch.cuda.is_initialized(),
    "group": torch.distributed.is_initialized(),
    "files": [os.readlink(file) for file in files if os.path.exists(file)],
}))
"""


@pytest.fixture(scope="module")
def prepared() -> Any:
    """A process that is ready to be forked, as it sees itself, on a host of several cores."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], env={"OMP_NUM_THREADS": "4"}, capture_output=True, check=True)
    return json.loads(done.stdout)


def test_nothing_heavy_is_imported_before_it_is_asked_for(prepared: Any) -> None:
    assert not prepared["before"]


def test_all_is_imported(prepared: Any) -> None:
    assert prepared["failed"] == "None"
    assert all(prepared["imported"])


def test_it_has_one_thread_and_no_device_and_holds_no_file(prepared: Any) -> None:
    assert prepared["threads"] == 1
    assert (prepared["cuda"], prepared["group"]) == (False, False)
    assert (prepared["files"], prepared["children"]) == ([], [])
