"""How a worker tells what went wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from pydantic import ValidationError

from convoy.checkpoint.errors import CheckpointError
from convoy.config.errors import ConfigError
from convoy.data.manifest import DataDamaged
from convoy.gang.task import EXPECTED
from convoy.job.events.types import OUTAGE, PEER_LOST
from convoy.storage import StoreUnavailable
from convoy.training.checkpointing.saver import SupersededError
from convoy.training.loop import LastSaveFailedError, TrainingFailedError
from convoy.training.workers.train import _failure, _fault, work
from tests.gang.light import assignment

pytestmark = pytest.mark.campaign

PLAIN = (ConfigError, TrainingFailedError, SupersededError, CheckpointError, DataDamaged)


@pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)
def test_what_a_line_tells_in_full_gets_no_traceback(
    kind: type[Exception], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code = _raise_and(_failure, kind("a = 1: must be 2\nmore"), tmp_path)

    line = "a = 1: must be 2\\nmore" if kind is ConfigError else "a = 1: must be 2"  # which keeps to a line by itself
    assert code == EXPECTED
    assert (tmp_path / "reason").read_text() == line
    assert capfd.readouterr().err == f"{line}\n"


def test_an_outage_is_told_as_such(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code = _raise_and(_failure, StoreUnavailable(28, "No space left on device", "/fsx/job"), tmp_path)

    assert code == OUTAGE
    told = "the store is out of reach: [Errno 28] No space left on device: '/fsx/job'"
    assert (tmp_path / "reason").read_text() == told
    assert capfd.readouterr().err == f"{told}\n"


def test_a_last_save_that_the_store_did_not_take_is_an_outage_that_another_attempt_may_mend(tmp_path: Path) -> None:
    assert (
        _raise_and(_failure, LastSaveFailedError("the last checkpoint, of step 4, was not saved"), tmp_path) == OUTAGE
    )
    assert (tmp_path / "reason").read_text() == "the last checkpoint, of step 4, was not saved"


def test_a_bug_gets_a_traceback(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert _raise_and(_failure, KeyError("x"), tmp_path) == 1
    assert (tmp_path / "reason").read_text() == "KeyError: 'x'"
    assert "Traceback" in capfd.readouterr().err


def test_an_error_without_words_is_told_by_its_kind(tmp_path: Path) -> None:
    assert _raise_and(_failure, AssertionError(), tmp_path) == 1
    assert (tmp_path / "reason").read_text() == "AssertionError: "


@pytest.mark.parametrize(
    "error", [dist.DistNetworkError("gone"), dist.DistStoreError("late"), RuntimeError("Connection closed by peer")]
)
def test_a_lost_peer_has_its_own_exit_code(error: Exception, tmp_path: Path) -> None:
    assert _raise_and(_failure, error, tmp_path) == PEER_LOST


def test_a_peer_that_is_lost_to_a_stage_of_a_pipeline_is_one_too(tmp_path: Path) -> None:
    wrapped = RuntimeError("[Stage 0] failed to run forward: args: ...")
    wrapped.__cause__ = RuntimeError("[gloo/transport/tcp/pair.cc:554] Connection closed by peer [127.0.0.1]:41")
    assert _raise_and(_failure, wrapped, tmp_path) == PEER_LOST


def test_a_broken_installation_is_told_too(tmp_path: Path) -> None:
    assert _raise_and(_fault, ImportError("libtorch.so: cannot open shared object file"), tmp_path) == 1
    assert (tmp_path / "reason").read_text().startswith("ImportError: libtorch.so")


def test_an_assignment_that_is_none_is_a_bug() -> None:
    with pytest.raises(ValidationError, match="validation errors for Assignment"):
        work(b"{}", None)


def test_a_worker_that_cannot_import_training_tells_why(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = assignment("job", tmp_path).model_dump_json().encode()

    assert work(told, None, broken=OSError("libtorch.so: cannot open shared object file")) == 1

    assert (tmp_path / "0.reason").read_text() == "OSError: libtorch.so: cannot open shared object file"
    assert "libtorch.so" in capfd.readouterr().err


def _raise_and(tell: object, error: Exception, folder: Path) -> int:
    assert callable(tell)
    try:
        raise error
    except Exception as caught:
        code = tell(caught, folder / "reason")
    assert isinstance(code, int)
    return code


SCRIPT = """
import json, os, sys
from convoy.training.workers.train import LATE, SOON, TrainingBody
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
