"""A commit verified by a gang: one outcome for all ranks, and damage is what two hosts find."""

import shutil
import socket
from pathlib import Path
from typing import Any

import pytest

from convoy.checkpoint import CheckpointError, Checkpoints
from convoy.checkpoint.verify.marks import damaged_in, read_damage, suspect, suspicions, verified_in
from convoy.job.lineage import CommitRef
from convoy.storage import Store, open_store
from tests.checkpoint.restore.test_load import spread
from tests.checkpoint.shims import Faulty
from tests.checkpoint.verify.test_commit import spoil
from tests.ranks import in_a_group

HOSTS = ["good", "bad", "bad"]
REF = CommitRef(generation=1, step=1)
ALWAYS = 1000


def save(rank: int, folder: Path) -> None:
    with Checkpoints(str(folder / "job"), verify=False) as ckpt:
        ckpt.save(1, spread(1.0)).wait()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By three writers."""
    folder = tmp_path_factory.mktemp("saved")
    in_a_group(3, save, folder)
    return folder / "job"


@pytest.fixture
def job(saved: Path, tmp_path: Path) -> Path:
    """The test's own copy of it, in a folder."""
    shutil.copytree(saved, tmp_path / "job")
    return tmp_path


def data_files(store: Store) -> list[str]:
    """By writer."""
    return [name for name in store.sizes("shards/") if name.endswith(".bin")]


def verify(rank: int, folder: Path, hosts: list[str], garbled: list[str]) -> tuple[str, list[str]]:
    """garbled: what host `bad` reads wrongly. What came of it, and the data files that this rank read."""
    socket.gethostname = lambda: hosts[rank]  # in a process of the test's own
    with Checkpoints(str(folder / "job"), verify=False) as ckpt:
        store = Faulty(ckpt._stores[0])
        ckpt._stores[0] = store  # type: ignore[call-overload]
        for name in garbled if hosts[rank] == "bad" else []:
            store.garble(name, ALWAYS)
        try:
            told = str(ckpt.verify(1))
        except CheckpointError as error:
            told = str(error)
        return told, sorted({name for call, name in store.calls if call == "read_into"})


def outcome(found: list[Any]) -> str:
    """The same on all ranks."""
    told = {told for told, _ in found}
    assert len(told) == 1
    return told.pop()


def test_each_rank_reads_a_share_and_all_return_the_whole(job: Path) -> None:
    store = open_store(str(job / "job"))
    suspect(store, REF, 1, "a flipped bit", "gone")
    found = in_a_group(3, verify, job, HOSTS, [])
    files = data_files(store)
    assert [read for _, read in found] == [[name] for name in files]
    assert outcome(found) == str(sum(store.sizes("shards/")[name] for name in files))
    assert (verified_in(store), suspicions(store)) == ({REF}, [])


def test_what_one_host_reads_wrongly_is_an_error_of_all_ranks_and_marks_nothing(job: Path) -> None:
    store = open_store(str(job / "job"))
    found = in_a_group(3, verify, job, HOSTS, [data_files(store)[1]])
    assert f"bad reads part 1 of {REF.name} otherwise than good, which finds it whole" in outcome(found)
    assert (damaged_in(store), suspicions(store)) == (frozenset(), [])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_what_two_hosts_find_is_damage_on_all_ranks(job: Path, which: int) -> None:
    store = open_store(str(job / "job"))
    spoil(store, data_files(store)[which])
    told = outcome(in_a_group(3, verify, job, HOSTS, []))
    assert "the checksum of chunk 0 does not match" in told
    evidence = read_damage(store, REF)
    assert evidence is not None
    assert {evidence.host, evidence.confirmed_by} == {"good", "bad"}


def test_where_all_ranks_share_a_host_its_word_counts(job: Path) -> None:
    store = open_store(str(job / "job"))
    spoil(store, data_files(store)[2])
    assert "the checksum of chunk 0" in outcome(in_a_group(3, verify, job, ["one"] * 3, []))
    assert damaged_in(store) == {REF}


def test_a_step_without_a_commit_is_told_on_all_ranks(job: Path) -> None:
    for name in open_store(str(job / "job")).sizes("commits/"):
        open_store(str(job / "job")).delete(name)
    assert outcome(in_a_group(3, verify, job, HOSTS, [])) == "step 1: no commit of it counts"
