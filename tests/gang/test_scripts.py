"""Gangs that run a user's script: what it finds, how its end is judged, and what becomes of it when it fails."""

import contextlib
import errno
import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from convoy.display.markdown import to_markdown
from convoy.drills.testbed.imds import ImdsStandIn
from convoy.gang.agent import Gang
from convoy.gang.task import Task
from convoy.job.events.registry import (
    FailureDetected,
    GenerationEnded,
    NoticeReceived,
    ScriptEndedLate,
    ScriptEvent,
    ScriptResumed,
    ScriptStep,
)
from convoy.report.analysis.timeline import timeline
from convoy.report.fold import fold
from convoy.report.pages.train import script_page
from tests.gang.tasks import (
    DDP,
    a_node,
    a_script,
    agents,
    events_of,
    incidents,
    outcome_of,
    pid_of,
    printed,
    run_gang,
    running,
    wait_for,
)
from tests.network.nccl.written import Carrier
from tests.network.nccl.written import Job as Written

pytestmark = pytest.mark.alone

WHERE = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")
ours = [name for name in sys.modules if name.startswith("convoy.training.")]
found = {"main": __name__, "argv": sys.argv, "path": sys.path[0], "torch": "torch" in sys.modules, "ours": ours}
print(json.dumps({name: os.environ.get(name) for name in names} | found))
"""

TOGETHER = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
print("sum", total.item(), flush=True)
"""


def failures(task: Task) -> list[FailureDetected]:
    return [e for e in events_of(task) if isinstance(e, FailureDetected)]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Task, int]:
    """A script that tells where it is, and of which rank 0 ends before rank 1; and a port that was not free."""
    text = (
        WHERE
        + TOGETHER
        + """
import time
if dist.get_rank() == 0:
    sys.exit(0)
time.sleep(1)
dist.distributed_c10d._get_default_store().set("still", "there")
print("went on", flush=True)
"""
    )
    task = a_script(tmp_path_factory.mktemp("of two"), text, "--rate", 0.5)
    with socket.create_server(("", 0)) as taken:
        port: int = taken.getsockname()[1]
        with agents(task, 2, {"MASTER_PORT": str(port), "MASTER_ADDR": "nowhere"}) as gang:
            assert {agent.outcome().outcome for agent in gang} == {"finished"}
    return task, port


def test_a_script_finds_what_torchrun_would_give_it_and_a_port_that_is_its_own(of_two: tuple[Task, int]) -> None:
    task, taken = of_two
    assert task.script is not None
    file = Path(task.script.entrypoint)
    first, second = (json.loads(printed(task, rank).splitlines()[0]) for rank in (0, 1))
    assert first["MASTER_PORT"] == second["MASTER_PORT"] != str(taken)
    for rank, found in enumerate((first, second)):
        assert (found["RANK"], found["WORLD_SIZE"], found["GROUP_RANK"]) == (str(rank), "2", str(rank))
        assert (found["LOCAL_RANK"], found["LOCAL_WORLD_SIZE"], found["MASTER_ADDR"]) == ("0", "1", "127.0.0.1")
        assert (found["TORCHELASTIC_RUN_ID"], found["TORCHELASTIC_RESTART_COUNT"]) == ("job", "0")
        assert found["argv"] == [str(file), "--rate", "0.5"]
        assert (found["main"], found["path"], found["torch"]) == ("__main__", str(file.parent), True)
        assert set(found["ours"]) == {"convoy.training.workers", "convoy.training.workers.train"}


def test_a_module_is_run_as_by_python_m(tmp_path: Path) -> None:
    task = running(tmp_path, "json.tool", "--help")
    assert run_gang(task, a_node(nproc=1)).outcome == "finished"
    assert "usage:" in printed(task, 0)


@pytest.mark.slow
def test_a_new_user_s_ddp_script_survives_the_kill_of_a_worker(tmp_path: Path) -> None:
    assert len(DDP.read_text().splitlines()) <= 40
    undisturbed = running(tmp_path / "a", str(DDP), "--steps", 100, "--pause", 0.01)
    with agents(undisturbed, 2) as gang:
        assert {agent.outcome().outcome for agent in gang} == {"finished"}
    task = running(tmp_path / "b", str(DDP), "--steps", 100, "--pause", 0.05)
    with agents(task, 2) as gang:
        wait_for("a snapshot", Path(task.root, "job", "script", "snapshot.pt").exists)
        os.kill(gang[1].worker(1), signal.SIGKILL)
        assert {agent.outcome().outcome for agent in gang} == {"finished"}

    (failed,) = failures(task)
    assert (failed.worker, failed.signal, failed.action) == (1, "SIGKILL", "restart")
    assert failed.step >= 9  # of rank 1, when rank 0 has done 10
    (resumed,) = [e for e in events_of(task) if isinstance(e, ScriptResumed)]
    assert resumed.step >= 10
    assert f"rank 1 of 2 goes on from step {resumed.step}" in printed(task, 1, generation=2)
    assert printed(task, 0, generation=2).splitlines()[-1] == printed(undisturbed, 0).splitlines()[-1]
    (incident,) = incidents(task)
    print(f"detected {incident.detected_s}, recovered {incident.recovered_s}, beyond {incident.beyond_s}")
    assert incident.recovered_s is not None
    assert incident.detected_s is not None
    assert incident.detected_s <= 10.0
    page = script_page(fold(events_of(task)), "ddp_script.py")
    assert "Incidents" in [getattr(block, "text", "") for block in page.blocks]


@pytest.mark.slow
def test_a_script_that_tells_nothing_is_restarted_too_and_never_taken_to_hang(tmp_path: Path) -> None:
    task = a_script(
        tmp_path, "import time, os\nprint('here', flush=True)\ntime.sleep(0 if os.path.exists('x') else 60)"
    )
    with Gang(task, a_node(nproc=2)) as gang:
        first, log = pid_of(gang, 1), Path(task.root, "job", "logs", "000001", "00000", "rank00001.log")
        wait_for("its start", lambda: "here" in log.read_text())
        os.kill(first, signal.SIGKILL)
        wait_for("a restart", lambda: gang.generation.generation == 2)
    (failed,) = failures(task)
    assert (failed.cause, failed.worker, failed.action) == ("exited", 1, "restart")


@pytest.mark.slow
def test_a_script_that_comes_to_no_next_step_is_restarted_by_its_own_limit(tmp_path: Path) -> None:
    text = """
import pathlib, time
from convoy import script
for step in range(1, 4):
    script.progress(step)
if not pathlib.Path(script.checkpoints_uri()).exists():
    pathlib.Path(script.checkpoints_uri()).mkdir()
    time.sleep(600)
script.event("went on", steps=3, rate=0.5, name="x", none=None, yes=True)
"""
    task = a_script(tmp_path, text, hang_seconds=2.0)
    assert run_gang(task, a_node(nproc=1)).outcome == "finished"
    (failed,) = failures(task)
    assert (failed.cause, failed.worker, failed.step) == ("hung", 0, 3)
    assert "the limit is 2 s" in failed.reason
    (event,) = [e for e in events_of(task) if isinstance(e, ScriptEvent)]
    assert (event.name, event.generation, event.rank) == ("went on", 2, 0)
    assert event.values == {"steps": 3, "rate": 0.5, "name": "x", "none": None, "yes": True}


@pytest.mark.slow
def test_a_script_that_hangs_after_its_last_line_is_ended_with_its_own_exit_code(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its exit handler holds Python's lock forever. In the last generation a thread makes progress before that."""
    text = """
import atexit, ctypes, os, pathlib, sys, threading, time

def upload():
    for _ in range(30):
        time.sleep(0.05)
        open("/dev/null", "wb").write(bytes(65536))
    print("uploaded", flush=True)

generation = pathlib.Path(sys.argv[1])
runs = len(generation.read_text()) if generation.exists() else 0
generation.write_text("x" * (runs + 1))
if runs == 0:
    os._exit(2)
atexit.register(ctypes.PyDLL(None).pause)
if runs == 1:
    sys.exit(7)
threading.Thread(target=upload).start()
"""
    task = a_script(tmp_path, text, tmp_path / "runs", exit_seconds=0.5)
    assert run_gang(task, a_node(nproc=1)).outcome == "finished"
    first, second = failures(task)
    assert (first.exit_code, first.reason, first.action) == (1, "os._exit(2)", "restart")
    assert (second.cause, second.exit_code, second.action) == ("exited", 7, "restart")
    late = [e for e in events_of(task) if isinstance(e, ScriptEndedLate)]
    assert [(e.worker, e.exit_code, e.generation) for e in late] == [(0, 7, 2), (0, 0, 3)]
    assert min(e.seconds for e in late) > 0.5
    told = "\n".join(moment.text for moment in timeline(events_of(task)))
    assert "Rank 0 on node 0 was ended after its script's last line, with exit code 7" in told
    log = Path(task.root, "job", "logs", "000003", "00000", "rank00000.log")
    assert log.read_text() == "uploaded\n"
    assert "rank 0 is ended after its script's last line, with exit code 7" in capfd.readouterr().out


@pytest.mark.slow
def test_what_follows_from_a_lost_rank_is_no_cause(tmp_path: Path) -> None:
    text = (
        TOGETHER
        + """
import pathlib, os, signal, time
if not pathlib.Path(sys.argv[1]).exists():
    if dist.get_rank() == 1:
        pathlib.Path(sys.argv[1]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
"""
    )
    task = a_script(tmp_path, text, tmp_path / "once")
    with agents(task, 2) as gang:
        assert {agent.outcome().outcome for agent in gang} == {"finished"}
    (failed,) = failures(task)
    assert (failed.worker, failed.signal) == (1, "SIGKILL")


def test_a_gang_ends_with_the_first_cause_if_one_rank_shows_another_network_than_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of rank 1 is that of TCP; rank 0 waits for it as in a step."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    jobs: list[Carrier] = ["efa+gdr", "libfabric tcp"]
    written = [Written(carrier=carrier, ranks=2, per_host=1).rank_lines(rank) for rank, carrier in enumerate(jobs)]
    text = (
        TOGETHER
        + f"""
from convoy import script
print("\\n".join({written}[dist.get_rank()]), flush=True)
for step in range(1, 5):
    dist.barrier()
    script.progress(step)
"""
    )
    task = a_script(tmp_path, text, cluster={"require_network": "efa"})
    with agents(task, 2, shares_host=False) as gang:
        outcomes = [agent.outcome() for agent in gang]
    assert {outcome.outcome for outcome in outcomes} == {"failed"}
    assert outcomes[0].message.startswith("cluster.require_network = efa: rank 1 on node-1 uses TCP; first cause: ")
    (failed,) = failures(task)
    assert (failed.worker, failed.retryable) == (1, False)
    assert "TCP, 1 of 2 ranks (NCCL's log)" in to_markdown(script_page(fold(events_of(task)), "a_script.py"))


def test_a_rank_may_end_before_the_others_and_the_rendezvous_goes_on(of_two: tuple[Task, int]) -> None:
    task, _ = of_two
    assert failures(task) == []
    assert printed(task, 1).splitlines()[-1] == "went on"


@pytest.mark.slow
def test_a_notice_on_one_node_is_told_to_all_ranks_at_the_same_step(tmp_path: Path) -> None:
    text = (
        TOGETHER
        + """
import time
from convoy import script
for step in range(1, 100000):
    time.sleep(0.01)
    script.progress(step)
    told = script.notice()
    if told:
        print(told, step, flush=True)
        break
"""
    )
    task = a_script(tmp_path, text)
    with ImdsStandIn() as imds, agents(task, 2, {"AWS_EC2_METADATA_SERVICE_ENDPOINT": imds.url}) as gang:
        wait_for("some steps", lambda: any(isinstance(e, ScriptStep) and e.step > 5 for e in events_of(task)))
        imds.announce_interruption(lead_seconds=120.0)
        outcomes = [agent.outcome() for agent in gang]
    assert {outcome.outcome for outcome in outcomes} == {"preempted"}
    (notice,) = [e for e in events_of(task) if isinstance(e, NoticeReceived)]
    assert (notice.node, notice.action) == (1, "save_and_end")
    first, second = (printed(task, rank).splitlines()[-1] for rank in (0, 1))
    assert first == second
    assert re.fullmatch(r"save_and_end \d+", first)


@pytest.mark.slow
def test_a_script_that_cannot_hear_a_notice_goes_on_until_shortly_before_the_machine_goes(tmp_path: Path) -> None:
    text = "import time\nprint('here', flush=True)\ntime.sleep(600)"
    task = a_script(tmp_path, text, notices={"deadline_seconds": 4.0})
    with Gang(task, a_node(nproc=1)) as gang:
        pid_of(gang, 0)
        began = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)
        assert outcome_of(gang).outcome == "preempted"
    assert 1.5 <= time.monotonic() - began <= 4.0


def test_outside_of_a_gang_a_script_tells_nothing_and_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from convoy import script

    with contextlib.ExitStack() as stack:
        stack.callback(script.attach, None)
        script.progress(3)
        script.event("x", value=1)
        assert script.notice() is None
        assert script.checkpoints_uri() == "checkpoints"
        assert script.checkpoints_uri("s3://bucket/here") == "s3://bucket/here"


def test_a_rank_that_hangs_at_its_end_is_ended_where_nobody_reads_what_the_agent_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as after its terminal was closed."""

    def gone(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    task = a_script(tmp_path, "import atexit, ctypes; atexit.register(ctypes.PyDLL(None).pause)", exit_seconds=0.2)
    monkeypatch.setattr(sys.stdout, "write", gone)
    assert run_gang(task, a_node(nproc=1)).outcome == "finished"
    monkeypatch.undo()
    assert [e.outcome for e in events_of(task) if isinstance(e, GenerationEnded)] == ["finished"]
