"""Files of a folder in a checkpoint, of several ranks and hosts."""

import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint import CheckpointError, Checkpoints, Folder
from convoy.checkpoint.state.folder import part_of_file
from tests.ranks import in_a_group, on_ranks

pytestmark = pytest.mark.processes

CONTENT = {"model/weights.bin": bytes(range(256)) * 5000, "rng_0.pth": b"zero", "rng_1.pth": b"one", "empty": b""}


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def read(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def save(rank: int, root: Path, hosts: bool, step: int) -> None:
    """hosts: each rank is a host of its own, with a folder that has only what the rank wrote."""
    if hosts:
        socket.gethostname = lambda: f"host-{rank}"
    folder = root / (f"own-{rank}" if hosts else "own")
    mine = {
        name: data for name, data in CONTENT.items() if name == f"rng_{rank}.pth" or (not rank and "rng" not in name)
    }
    write(folder, mine)
    state = {"files": Folder(), "step": torch.tensor([step])}
    with Checkpoints(str(root / "store")) as checkpoints:
        state["files"].show(folder)
        pending = checkpoints.save(step, state)
        dist.barrier()
        write(folder, dict.fromkeys(mine, b"of the next checkpoint"))
        pending.wait()


def restore(rank: int, root: Path, hosts: bool) -> tuple[int, Path, dict[str, bytes]]:
    if hosts:
        socket.gethostname = lambda: f"host-{rank}"
    state = {"files": Folder(), "step": torch.tensor([0])}
    with Checkpoints(str(root / "store")) as checkpoints:
        folder = state["files"].restore_below(root / "restored")
        write(folder, {"of before": b"x"}) if rank == 0 else None
        state["files"].wait_for_all()
        assert checkpoints.restore(state) is not None
        state["files"].wait_for_all()
    return int(state["step"]), folder, read(folder)


@pytest.mark.parametrize("hosts", [False, True])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_all_hosts_get_all_files_whoever_had_them(tmp_path: Path, hosts: bool, world_size: int) -> None:
    in_a_group(2, save, tmp_path, hosts, 7)
    results = in_a_group(world_size, restore, tmp_path, hosts)
    assert [(step, files) for step, _, files in results] == [(7, CONTENT)] * world_size
    assert len({folder for _, folder, _ in results}) == (world_size if hosts else 1)


def save_two(_: int, root: Path) -> None:
    folder = Folder()
    with Checkpoints(str(root / "store")) as checkpoints:
        for step, files in ((1, {"a": b"first" * 1000}), (2, {"a": b"second" * 1000, "b": b"more"})):
            write(root / "own", files)
            folder.show(root / "own")
            checkpoints.save(step, {"files": folder, "step": torch.tensor([step])}).wait()


def test_damage_leads_to_the_files_of_the_commit_before_and_to_no_others(tmp_path: Path) -> None:
    on_ranks(1, save_two, tmp_path)
    (damaged,) = (tmp_path / "store" / "shards").glob("*-000000002")
    for file in damaged.rglob("*"):
        if file.is_file() and b"secondsecond" in file.read_bytes():
            file.write_bytes(file.read_bytes().replace(b"secondsecond", b"secondSecond", 1))
    ((step, _, files),) = on_ranks(1, restore, tmp_path, False)
    assert (step, files) == (1, {"a": b"first" * 1000})


def no_space(_: int, root: Path) -> str:
    state = {"files": Folder(), "step": torch.tensor([0])}
    (root / "restored").write_text("not a folder")
    with Checkpoints(str(root / "store")) as checkpoints:
        state["files"].restore_below(root / "restored")
        with pytest.raises(CheckpointError) as refusal:
            checkpoints.restore(state)
    return str(refusal.value)


def test_a_place_that_takes_no_files_is_an_error_and_no_damage(tmp_path: Path) -> None:
    on_ranks(1, save_two, tmp_path)
    (message,) = on_ranks(1, no_space, tmp_path)
    assert "cannot write the restored files there" in message
    (tmp_path / "restored").unlink()
    ((step, _, _),) = on_ranks(1, restore, tmp_path, False)
    assert step == 2


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), min_size=1, max_size=6), st.integers(1, 50))
def test_the_parts_of_a_file_are_all_of_it_once_and_of_one_host(ranks: list[tuple[str, bool]], size: int) -> None:
    hosts = [host for host, _ in ranks]
    listings = [{"f": size} if has else {} for _, has in ranks]
    if not any(listings):
        return
    parts = [part_of_file(listings, hosts, "f", rank) for rank in range(len(ranks))]
    read = [(begin, end, hosts[rank]) for rank, (begin, end) in enumerate(parts) if begin < end]
    assert [number for begin, end, _ in read for number in range(begin, end)] == list(range(size))
    assert len({host for *_, host in read}) == 1
