"""A restore on several hosts: what one of them reads wrongly condemns nothing, what two find is damage."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from convoy.checkpoint.api import Checkpoints
from convoy.checkpoint.restore.load import OUTAGE_PAUSES_SECONDS, Damage, restore
from convoy.checkpoint.verify.marks import damaged_in, mark_damaged, read_damage
from convoy.job.lineage import CommitRef, read_history, restore_candidates
from convoy.storage import Store, StoreUnavailable, open_store
from tests.checkpoint.restore.test_load import data_file, spread
from tests.checkpoint.shims import Faulty
from tests.ranks import in_a_group

REF = CommitRef(generation=1, step=2)
ALWAYS = 1000


def names(store: Store) -> dict[str, str]:
    """Of step 2: what a host may read wrongly."""
    data = data_file(store, 2)
    folder = data[: -len("00000.000.bin")]
    return {"commit": REF.name, "record": folder + "part-00001.json", "data": folder + "00001.000.bin"}


def restored(rank: int, folder: Path, hosts: list[str], garbled: dict[str, list[str]]) -> tuple[Any, ...]:
    """garbled: what each host reads wrongly."""
    store = Faulty(open_store(str(folder / "job")))
    for what in garbled.get(hosts[rank], []):
        store.garble(names(store)[what], ALWAYS)  # type: ignore[arg-type]
    slept, damages = list[float](), list[Damage]()

    def on_damage(found: Damage) -> None:
        damages.append(found)
        mark_damaged(store, found.ref, found.error, host=found.host, confirmed_by=found.confirmed_by)  # type: ignore[arg-type]

    told, state = "restored", spread(0.0)
    tried = restore_candidates(read_history(store)) if rank == 0 else None  # type: ignore[arg-type]
    try:
        restore(
            [store],  # type: ignore[list-item]
            tried,
            state,
            group=dist.group.WORLD,
            on_damage=on_damage,
            sleep=slept.append,
            host=hosts[rank],
        )
    except StoreUnavailable as error:
        told = str(error)
    return told, state["step"], [(d.ref.step, d.host, d.confirmed_by) for d in damages], len(slept)


def save_two(rank: int, folder: Path) -> None:
    with Checkpoints(str(folder / "job"), verify=False) as ckpt:
        for step in (1, 2):
            ckpt.save(step, spread(float(step))).wait()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """By three ranks."""
    folder = tmp_path_factory.mktemp("saved")
    in_a_group(3, save_two, folder)
    return folder / "job"


@pytest.fixture
def of_three(saved: Path, tmp_path: Path) -> Path:
    """The test's own copy of it, in a folder."""
    shutil.copytree(saved, tmp_path / "job")
    return tmp_path


HOSTS = ["good", "bad", "bad"]


def test_what_one_host_reads_wrongly_is_an_outage_of_that_host_and_marks_nothing(of_three: Path) -> None:
    found = in_a_group(3, restored, of_three, HOSTS, {"bad": ["data"]})
    told = found[0][0]
    assert "bad reads part 1 of commits/000001-000000002.json otherwise than good, which finds it whole" in told
    assert "memory, network or a disk cache of bad is at fault" in told
    assert "the checksum of chunk 0 does not match" in told
    assert found == [(told, 0, [], len(OUTAGE_PAUSES_SECONDS))] * 3
    assert damaged_in(open_store(str(of_three / "job"))) == frozenset()


@pytest.mark.parametrize("what", ["commit", "record"])
def test_what_rank_0_alone_reads_wrongly_is_an_outage_too(of_three: Path, what: str) -> None:
    found = in_a_group(3, restored, of_three, ["bad", "bad", "good"], {"bad": [what]})
    part = "part 1 of " if what == "record" else ""
    assert f"bad reads {part}commits/000001-000000002.json otherwise than good" in found[0][0]
    assert [(step, damages) for _, step, damages, _ in found] == [(0, [])] * 3
    assert damaged_in(open_store(str(of_three / "job"))) == frozenset()


@pytest.mark.parametrize("what", ["commit", "record", "data"])
def test_what_two_hosts_read_so_is_damage(of_three: Path, what: str) -> None:
    store = open_store(str(of_three / "job"))
    name = names(store)[what]
    data = bytearray(store.read(name))
    data[len(data) // 2] ^= 1
    store.write(name, bytes(data))
    found = in_a_group(3, restored, of_three, HOSTS, {})
    by = ("bad", "good") if what == "data" else ("good", "bad")
    assert [(told, step, damages, slept) for told, step, damages, slept in found] == [
        ("restored", 1, [(2, *by)], 0),
        ("restored", 1, [], 0),
        ("restored", 1, [], 0),
    ]
    evidence = read_damage(store, REF)
    assert evidence is not None
    assert (evidence.host, evidence.confirmed_by) == by


def test_damage_that_only_shows_on_a_host_without_a_good_cache_is_found_by_both(of_three: Path) -> None:
    """The witness reads from the storage: here its reads go wrong as well, in a part that it does not need itself."""
    found = in_a_group(3, restored, of_three, HOSTS, {"bad": ["data"], "good": ["data"]})
    assert found[0][:3] == ("restored", 1, [(2, "bad", "good")])


def test_damage_that_is_confirmed_counts_though_a_bad_host_tells_of_another_part(of_three: Path) -> None:
    store = open_store(str(of_three / "job"))
    store.write(data_file(store, 2), bytes(store.sizes(data_file(store, 2))[data_file(store, 2)]))
    found = in_a_group(3, restored, of_three, HOSTS, {"bad": ["data"]})
    assert found[0][:2] == ("restored", 1)
    assert damaged_in(store) == {REF}


def restored_from_two_tiers(rank: int, folder: Path) -> tuple[int, int]:
    first, second = Faulty(open_store(str(folder / "job"))), open_store(str(folder / "job"))
    if rank == 1:
        first.garble(names(second)["data"], ALWAYS)
    state = spread(0.0)
    tried = [(REF, [0, 1]), (CommitRef(generation=1, step=1), [0, 1])]
    host = HOSTS[rank]
    found = restore([first, second], tried, state, group=dist.group.WORLD, sleep=lambda _: None, host=host)  # type: ignore[list-item]
    assert found is not None
    return found.step, found.tier


def test_another_tier_that_the_host_reads_rightly_is_used(of_three: Path) -> None:
    assert in_a_group(3, restored_from_two_tiers, of_three) == [(2, 1)] * 3


def exchanges(rank: int, folder: Path) -> int:
    """How often ranks exchanged something."""
    calls, gather = list[int](), dist.all_gather
    dist.all_gather = lambda *a, **k: (calls.append(1), gather(*a, **k))[1]  # type: ignore[assignment]
    state = {"w": torch.zeros(3000), "step": 0}
    store = open_store(str(folder / "job"))
    restore([store], restore_candidates(read_history(store)), state, group=dist.group.WORLD, host=HOSTS[rank])
    return len(calls)


def test_without_damage_the_hosts_are_not_even_asked_for(of_three: Path) -> None:
    assert in_a_group(3, exchanges, of_three) == [2, 2, 2]  # that the state fits, and that it was filled
