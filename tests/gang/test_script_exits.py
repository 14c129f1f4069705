"""Plain scripts whose work is done end by themselves: no agent is there that would end what hangs."""

import socket
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from convoy.gang.task import Assignment, Script
from convoy.gang.workers.prefork import SCRIPTS, Prefork
from convoy.gang.workers.worker import shared_environment
from tests.campaign import in_full
from tests.gang import light
from tests.gang.agents import busy
from tests.gang.tasks import a_node

pytestmark = pytest.mark.alone

RUNS = 50 if in_full() else 1
"""Of each script, on an idle machine and on one with more to do than it has cores. A hang was one in two."""

DEADLINE_SECONDS = 60.0

BEGIN = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
batches = [torch.randn(8, 64) for _ in range(5)]
"""

LEARN = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in batches:
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
print("done", flush=True)
dist.destroy_process_group()
"""

DDP = BEGIN + "model = torch.nn.parallel.DistributedDataParallel(model)\n" + LEARN

TEXTS = {
    "ddp": DDP,
    "ddp in main": "def main():" + textwrap.indent(DDP, "    ") + "main()\n",
    "fsdp2": BEGIN + "torch.distributed.fsdp.fully_shard(model)\n" + LEARN,
    "data loader": BEGIN
    + "model = torch.nn.parallel.DistributedDataParallel(model)\n"
    + "options = {'batch_size': 8, 'num_workers': 2, 'persistent_workers': True}\n"
    + "batches = torch.utils.data.DataLoader(torch.randn(40, 64), **options)\n"
    + LEARN,
}


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefork]:
    with Prefork(shared_environment(1), tmp_path_factory.mktemp("warm") / "log", SCRIPTS) as process:
        yield process


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 4])
@pytest.mark.parametrize("name", TEXTS)
def test_a_script_that_has_done_its_work_ends(name: str, others: int, warm: Prefork, tmp_path: Path) -> None:
    file = tmp_path / "a_script.py"
    file.write_text(TEXTS[name])
    with busy(others):
        ends = [exit_codes(warm, file, tmp_path / str(run)) for run in range(RUNS)]
    print(f"{name}, {others} others: {ends.count([0, 0])} of {RUNS} runs ended, {sum(None in e for e in ends)} hung")
    assert ends == [[0, 0]] * RUNS


def exit_codes(warm: Prefork, file: Path, folder: Path) -> list[int | None]:
    """Of both ranks; None: it hangs."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        workers = [
            warm.fork(assignment(rank, file, folder, listener), folder / "logs" / f"{rank}.log") for rank in (0, 1)
        ]
    deadline = time.monotonic() + DEADLINE_SECONDS
    while any(worker.exit_code() is None for worker in workers) and time.monotonic() < deadline:
        warm.wait_for_report(1.0)
    codes = [worker.exit_code() for worker in workers]
    warm.kill_workers()
    return codes


def assignment(rank: int, file: Path, folder: Path, listener: socket.socket) -> Assignment:
    task = light.assignment("job", folder, rank, listener.fileno() if rank == 0 else None)
    own = {
        "fingerprint": "script",
        "place": a_node(nproc=2).position_of(rank, 1),
        "script": Script(entrypoint=str(file)),
    }
    return task.model_copy(update={**own, "master_host": "127.0.0.1", "master_port": listener.getsockname()[1]})
