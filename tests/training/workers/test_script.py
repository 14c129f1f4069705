"""A script's environment, and its end: the exit code, the one line of reason, and what was printed."""

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from convoy.config.cluster import NetworkRequirement
from convoy.config.run import RunConfig
from convoy.gang.task import EXPECTED, RESERVED, Assignment, Node, Script
from convoy.gang.workers.board import Board, Mark
from convoy.job.events.log import read_events
from convoy.job.events.registry import PEER_LOST, NetworkProof
from convoy.network.nccl.proof import NCCL_LOG
from convoy.storage import open_store
from convoy.training.workers.script import run_assignment, script_environment, visible_devices
from tests.gang.light import assignment
from tests.network.nccl.written import Carrier
from tests.network.nccl.written import Job as Written


class Ended(NamedTuple):
    code: int
    reason: str
    printed: str
    mark: Mark


def run(folder: Path, text: str, *args: str, devices: str = "", **changed: Any) -> Ended:
    """The script in a process of its own, as the only rank. devices: CUDA's. changed: of its assignment."""
    file, log, reason = folder / "a_script.py", folder / "log", folder / "0.reason"
    file.write_text(text)
    board = Board.create(1)
    script = {"board_path": board.path, "script": Script(entrypoint=str(file), args=args), **changed}
    process = multiprocessing.get_context("fork").Process(
        target=_be, args=(assignment("job", folder).model_copy(update=script), log, devices)
    )
    process.start()
    process.join(60)
    assert process.exitcode is not None, "it does not end"
    said = reason.read_text() if reason.exists() else ""
    ended = Ended(process.exitcode, said, log.read_text(), board.read(0))
    board.close()
    return ended


def _be(task: Assignment, log: Path, devices: str) -> NoReturn:
    os.environ["CUDA_VISIBLE_DEVICES"] = devices
    output = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = sys.stderr = os.fdopen(1, "w", buffering=1)  # pytest has its own
    os._exit(run_assignment(task.model_dump_json().encode(), None))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("fault", "code", "reason", "line"),
    [
        ("raise ValueError('no\\nmore')", 1, "ValueError: no", "raise ValueError"),
        ("import sys; sys.exit(5)", 5, "", ""),
        ("import sys; sys.exit('out of luck')", 1, "out of luck", "out of luck"),
        ("import sys; sys.exit()", 0, "", ""),
        ("this is no Python", 1, "SyntaxError: invalid syntax (a_script.py, line 2)", "this is no Python"),
        ("import no_such_module", 1, "ModuleNotFoundError: No module named 'no_such_module'", "import no_such_module"),
        ("import argparse; argparse.ArgumentParser().parse_args(['--x'])", 1, "sys.exit(2)", "unrecognized arguments"),
        ("import os; os.kill(os.getpid(), 9)", -9, "", ""),
    ],
)
def test_how_it_ended_is_told_without_a_word_of_ours(
    fault: str, code: int, reason: str, line: str, tmp_path: Path
) -> None:
    ended = run(tmp_path, f"print('it begins', flush=True)\n{fault}\n")
    assert (ended.code, ended.reason) == (code, reason)
    assert ended.printed.startswith("it begins\n") == ("no Python" not in fault)
    assert line in ended.printed
    assert "runpy" not in ended.printed
    assert "workers/script.py" not in ended.printed


@pytest.mark.sampled(3)
@pytest.mark.parametrize("code", RESERVED)
def test_codes_that_tell_an_agent_something_are_not_taken_from_a_script(code: int, tmp_path: Path) -> None:
    ended = run(tmp_path, f"import sys\nsys.exit({code})")
    assert (ended.code, ended.reason) == (1, f"sys.exit({code})")


def test_a_rank_that_lost_its_peer_is_no_cause(tmp_path: Path) -> None:
    ended = run(tmp_path, "import torch.distributed\nraise RuntimeError('[..] Connection closed by peer [..]')")
    assert ended.code == PEER_LOST


@pytest.mark.parametrize(("end", "code", "reason"), [("", 0, ""), ("raise OSError('x')", 1, "OSError: x")])
def test_what_a_script_registered_for_its_end_is_done_and_its_threads_are_awaited(
    end: str, code: int, reason: str, tmp_path: Path
) -> None:
    text = """
import atexit, threading, time
atexit.register(lambda: print("at exit", flush=True))
threading.Thread(target=lambda: (time.sleep(0.3), print("thread", flush=True))).start()
print("end of script", flush=True)
"""
    ended = run(tmp_path, text + end)
    assert (ended.code, ended.reason) == (code, reason)
    assert [line for line in ended.printed.splitlines() if line in ("end of script", "thread", "at exit")] == [
        "end of script", "thread", "at exit",
    ]  # fmt: skip


def test_what_a_script_defined_is_there_for_its_exit_handlers(tmp_path: Path) -> None:
    text = """
import atexit, pickle, sys, weakref
class Held:
    pass
def at_exit(held):
    assert sys.modules["__main__"].Held is type(held())
    print(pickle.loads(pickle.dumps(held())) is not None, flush=True)
held = Held()
atexit.register(at_exit, weakref.ref(held))
atexit.register(sys.exit, 9)
log = open(sys.argv[1], "w")
log.write("the last line")
"""
    file = tmp_path / "its log"
    ended = run(tmp_path, text, str(file))
    assert (ended.code, ended.printed.splitlines()[-1]) == (0, "True")
    assert file.read_text() == "the last line"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("end", "code", "earned"),
    [("sys.exit(5)", 5, 5), ("sys.exit('no')", 1, 1), ("1 / 0", 1, 1), ("os._exit(4)", 4, None), ("pass", 0, 0)],
)
def test_the_board_says_that_the_last_line_of_the_rank_s_own_process_has_run(
    end: str, code: int, earned: int | None, tmp_path: Path
) -> None:
    ended = run(tmp_path, f"import os, sys\nif os.fork() == 0:\n    sys.exit(6)\nos.wait()\n{end}")
    assert (ended.code, ended.mark.earned) == (code, earned)


@pytest.mark.parametrize("end", ["sys.exit(5)", "raise ValueError"])
def test_what_a_function_held_as_the_script_ended_is_not_destroyed(end: str, tmp_path: Path) -> None:
    """A process group may hang in that."""
    text = f"""
import sys
class Group:
    def __del__(self):
        print("destroyed", flush=True)
def main():
    group = Group()
    {end}
main()
"""
    assert "destroyed" not in run(tmp_path, text).printed


def test_its_mark_says_that_a_script_runs_until_it_tells_of_a_step(tmp_path: Path) -> None:
    assert run(tmp_path, "pass").mark.phase == "script"
    mark = run(tmp_path, "from convoy import script\nfor i in range(1, 4): script.progress(i)").mark
    assert (mark.phase, mark.step) == ("step", 3)
    assert 0 < mark.step_seconds < 60


def test_a_script_may_start_processes_that_import_it_anew(tmp_path: Path) -> None:
    text = """
import multiprocessing, sys
def double(x):
    return 2 * x
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.map(double, [1, 2]), sys.argv[1:])
"""
    assert run(tmp_path, text, "--a", "b").printed.splitlines()[0] == "[2, 4] ['--a', 'b']"


USES_NCCL = """
import os
from convoy import script
print(os.environ.get("NCCL_DEBUG"), os.environ.get("NCCL_DEBUG_SUBSYS"), flush=True)
for step in range(1, 5):
    os.write(1, b"".join(line.encode() + b"\\n" for line in {lines}))
    script.progress(step)
print("trained", flush=True)
"""


def on_hosts(hosts: int, required: NetworkRequirement | None = None) -> dict[str, Any]:
    """An assignment of rank 0 of so many hosts with one rank each."""
    node = Node(0, hosts, 1, "10.0.0.7", "F/1", "f", 0, shares_host=False)
    config = RunConfig.model_validate({"cluster": {"require_network": required}})
    return {"place": node.position_of(0, 1), "config": config}


def run_with_nccl(folder: Path, carrier: Carrier, devices: str, **changed: Any) -> tuple[Ended, list[NetworkProof]]:
    """A script whose output has the lines that NCCL would write there."""
    ended = run(
        folder, USES_NCCL.format(lines=Written(carrier=carrier, ranks=2, per_host=1).rank_lines(0)),
        devices=devices, **changed,
    )  # fmt: skip
    return ended, [e for e in read_events(open_store(str(folder))) if isinstance(e, NetworkProof)]


@pytest.mark.processes
def test_a_script_on_gpus_of_several_hosts_proves_its_network_once_it_reports_progress(tmp_path: Path) -> None:
    ended, proofs = run_with_nccl(tmp_path, "efa+gdr", "0", **on_hosts(2, "efa"))
    assert ended.code == 0
    assert ended.printed.startswith("{NCCL_DEBUG} {NCCL_DEBUG_SUBSYS}\n".format(**NCCL_LOG))
    assert [(proof.rank, proof.verdict, proof.carrier) for proof in proofs] == [(0, "rdma+gdr", "efa")]


@pytest.mark.processes
def test_a_script_that_fell_back_ends_its_attempt_with_the_first_cause(tmp_path: Path) -> None:
    ended, proofs = run_with_nccl(tmp_path, "libfabric tcp", "0", **on_hosts(2, "efa"))
    assert ended.code == EXPECTED
    assert ended.reason.startswith(
        "cluster.require_network = efa: rank 0 on node-0 uses TCP; first cause: libfabric offers no EFA device"
    )
    assert "trained" not in ended.printed
    assert "Traceback" not in ended.printed
    assert [proof.verdict for proof in proofs] == ["tcp"]


@pytest.mark.processes
@pytest.mark.parametrize(("devices", "hosts"), [("", 2), ("0", 1)])
def test_a_script_on_cpus_or_on_one_host_proves_nothing(tmp_path: Path, devices: str, hosts: int) -> None:
    ended, proofs = run_with_nccl(tmp_path, "socket", devices, **on_hosts(hosts, "efa"))
    assert (ended.code, proofs) == (0, [])
    assert ended.printed.startswith("None None")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise ValueError('half \\udcff of a pair')", r"ValueError: half \udcff of a pair"),
        ("import sys; sys.exit('half \\udcff of a pair')", r"half \udcff of a pair"),
        ("class Bad(Exception):\n    def __str__(self): raise RuntimeError\nraise Bad", "Bad: "),
    ],
)
def test_an_error_whose_text_cannot_be_written_is_still_the_script_s_own(
    text: str, reason: str, tmp_path: Path
) -> None:
    ended = run(tmp_path, text)
    assert (ended.code, ended.reason) == (1, reason)
    assert "workers/script.py" not in ended.printed


def environment(node: Node, local_rank: int, devices: list[str]) -> dict[str, str]:
    gang = {"generation": 3, "place": node.position_of(local_rank, 1), "master_host": "10.0.0.7", "master_port": 4711}
    return script_environment(assignment("job", Path("/root")).model_copy(update=gang), devices)


def node_of(index: int, nodes: int, nproc: int, shared: bool) -> Node:
    return Node(index, nodes, nproc, "10.0.0.7", "F/1", "f", 0, shared)


@pytest.mark.parametrize("shared", [True, False])
def test_the_variables_are_those_of_torchrun(shared: bool) -> None:
    found = environment(node_of(1, 2, 4, shared), 3, [])
    assert found.items() >= {
        "RANK": "7", "WORLD_SIZE": "8", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "4", "GROUP_RANK": "1",
        "MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "4711", "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }.items()  # fmt: skip
    assert "CUDA_VISIBLE_DEVICES" not in found


def test_nodes_on_one_host_have_gpus_of_their_own() -> None:
    """Scripts take the LOCAL_RANK-th of those that they see."""
    devices = ["4", "5", "6", "7"]
    seen = [environment(node_of(i, 2, 2, True), r, devices)["CUDA_VISIBLE_DEVICES"] for i in (0, 1) for r in (0, 1)]
    assert seen == ["4,5", "4,5", "6,7", "6,7"]
    # A node with a host of its own sees all of its GPUs.
    assert "CUDA_VISIBLE_DEVICES" not in environment(node_of(1, 2, 2, False), 0, ["0", "1"])


@pytest.mark.parametrize(
    ("named", "seen"),
    [("0,1", ["0", "1"]), ("GPU-abc, 3", ["GPU-abc", "3"]), ("", []), ("-1", []), (None, ["0", "2", "11"])],
)
def test_devices_are_those_named_or_those_there(named: str | None, seen: list[str], tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia2", "nvidia11", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible_devices({} if named is None else {"CUDA_VISIBLE_DEVICES": named}, tmp_path) == seen
