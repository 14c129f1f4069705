"""How a worker tells what went wrong."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from convoy.checkpoint.errors import CheckpointError
from convoy.config.errors import ConfigError
from convoy.data.manifest import DataDamaged
from convoy.gang.task import EXPECTED
from convoy.job.events.registry import OUTAGE, PEER_LOST
from convoy.storage import StoreUnavailable
from convoy.training.checkpointing.saver import SupersededError
from convoy.training.loop import LastSaveFailedError, TrainingFailedError
from convoy.training.workers.train import _report_failure, run_assignment
from tests.gang.light import assignment

pytestmark = pytest.mark.campaign

LOST_TO_A_STAGE = RuntimeError("[Stage 0] failed to run forward: args: ...")
LOST_TO_A_STAGE.__cause__ = RuntimeError("[gloo/transport/tcp/pair.cc:554] Connection closed by peer [127.0.0.1]:41")


@pytest.mark.parametrize(
    ("error", "code", "reason", "is_bug"),
    [
        (ConfigError("a = 1: must be 2\nmore"), EXPECTED, "a = 1: must be 2\\nmore", False),  # in a line by itself
        (TrainingFailedError("step 7\nmore"), EXPECTED, "step 7", False),
        (SupersededError("step 7\nmore"), EXPECTED, "step 7", False),
        (CheckpointError("step 7\nmore"), EXPECTED, "step 7", False),
        (DataDamaged("a file is gone"), EXPECTED, "a file is gone", False),
        (
            StoreUnavailable(28, "No space left on device", "/fsx/job"),
            OUTAGE,
            "the store is out of reach: [Errno 28] No space left on device: '/fsx/job'",
            False,
        ),
        (LastSaveFailedError("the last checkpoint was not saved"), OUTAGE, "the last checkpoint was not saved", False),
        (KeyError("x"), 1, "KeyError: 'x'", True),
        (AssertionError(), 1, "AssertionError: ", True),
        (dist.DistNetworkError("gone"), PEER_LOST, "DistNetworkError: gone", True),
        (RuntimeError("Connection closed by peer"), PEER_LOST, "RuntimeError: Connection closed by peer", True),
        (LOST_TO_A_STAGE, PEER_LOST, "RuntimeError: [Stage 0] failed to run forward: args: ...", True),
    ],
)
def test_an_error_has_its_exit_code_and_line_and_only_a_bug_a_traceback(
    error: Exception, code: int, reason: str, is_bug: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _report_failure(error, tmp_path / "reason") == code
    assert (tmp_path / "reason").read_text() == reason
    printed = capfd.readouterr().err
    assert type(error).__name__ in printed if is_bug else printed == f"{reason}\n"


def test_a_worker_that_cannot_import_training_tells_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = assignment("job", tmp_path).model_dump_json().encode()

    assert run_assignment(told, None, import_failure=OSError("libtorch.so: cannot open shared object file")) == 1

    assert (tmp_path / "0.reason").read_text() == "OSError: libtorch.so: cannot open shared object file"
    assert "libtorch.so" in capfd.readouterr().err


SCRIPT = """
import json, os, sys
from convoy.training.workers.train import LATE, SOON, TrainingBody
before = "torch" in sys.modules
body = TrainingBody()
body.import_modules()
body.import_late_modules()
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


def test_what_workers_are_forked_from_has_imported_all_and_has_one_thread_no_device_and_no_file() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], env={"OMP_NUM_THREADS": "4"}, capture_output=True, check=True)
    prepared = json.loads(done.stdout)
    assert (prepared["before"], prepared["failed"]) == (False, "None")
    assert all(prepared["imported"])
    assert (prepared["threads"], prepared["cuda"], prepared["group"]) == (1, False, False)
    assert (prepared["files"], prepared["children"]) == ([], [])
