"""Restoring: damage leads to the next copy or commit and is reported, an outage to an error, and all ranks agree."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultLoadPlanner, LoadPlan
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from convoy.checkpoint.api import Checkpoints
from convoy.checkpoint.commits import digest, read_part
from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import FORMAT_VERSION, Commit, encode_commit, part_record_name
from convoy.checkpoint.restore import reshard
from convoy.checkpoint.restore.load import OUTAGE_PAUSES_SECONDS, Damage, Restored, restore, retry_on_outage
from convoy.checkpoint.writer.copy import copy_commit
from convoy.config.errors import ConfigError
from convoy.job.lineage import CommitRef, read_history, restore_candidates
from convoy.storage import Store, StoreUnavailable, open_store
from tests.checkpoint.shims import Faulty
from tests.ranks import in_a_group

ELEMENTS = 4_000_000  # two chunks


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Commits of steps 1 and 2, and copies of both on a second tier."""
    folder = tmp_path_factory.mktemp("saved")
    with Checkpoints(str(folder / "root"), verify=False) as ckpt:
        refs = [
            ckpt.save(step, {"w": torch.full((ELEMENTS,), float(step)), "step": step}).wait().ref for step in (1, 2)
        ]
    for ref in refs:
        copy_commit(open_store(str(folder / "root")), open_store(str(folder / "copy")), ref)
    return folder


@pytest.fixture
def tiers(saved: Path) -> list[Faulty]:
    return [Faulty(open_store(str(saved / name))) for name in ("root", "copy")]


def empty() -> dict[str, Any]:
    return {"w": torch.zeros(ELEMENTS), "step": 0}


def all_candidates(tiers: list[Faulty]) -> Any:
    found = restore_candidates(read_history(tiers[0], tiers[1:]))
    assert [(ref.step, places) for ref, places in found] == [(2, [0, 1]), (1, [0, 1])]
    return found


def data_file(store: Store, step: int) -> str:
    return next(n for n in store.sizes("shards/") if f"-{step:09d}/" in n and n.endswith(".bin"))


def loads(tiers: list[Faulty], **how: Any) -> tuple[Restored, list[Damage]]:
    state, damages = empty(), list[Damage]()
    found = restore(tiers, all_candidates(tiers), state, on_damage=damages.append, sleep=lambda _: None, **how)
    assert found is not None
    assert (state["step"], set(state["w"].unique().tolist())) == (found.step, {float(found.step)})
    return found, damages


def test_the_newest_commit_is_read_whole(tiers: list[Faulty]) -> None:
    found, damages = loads(tiers)
    assert (found.step, found.tier, found.bytes, damages) == (2, 0, 4 * ELEMENTS, [])


def test_a_chunk_that_reads_right_the_second_time_is_no_damage(tiers: list[Faulty]) -> None:
    tiers[0].garble(data_file(tiers[0], 2), times=1)
    found, damages = loads(tiers)
    assert (found.step, found.tier, damages) == (2, 0, [])


def test_a_damaged_copy_leads_to_the_next_tier_and_then_to_the_commit_before(tiers: list[Faulty]) -> None:
    tiers[0].garble(data_file(tiers[0], 2), times=1000)
    found, damages = loads(tiers)
    assert (found.step, found.tier) == (2, 1)
    assert [(d.ref.step, d.tier) for d in damages] == [(2, 0)]
    assert "checksum of chunk" in damages[0].error
    assert found.damaged == tuple(damages)

    tiers[1].garble(data_file(tiers[1], 2), times=1000)
    found, damages = loads(tiers)
    assert (found.step, found.tier) == (1, 0)
    assert [(d.ref.step, d.tier) for d in damages] == [(2, 0), (2, 1)]


def test_damage_of_a_commit_or_a_part_record_is_found_too(tiers: list[Faulty]) -> None:
    for name in (
        CommitRef(generation=1, step=2).name,
        data_file(tiers[0], 2)[: -len("00000.000.bin")] + "part-00000.json",
    ):
        tiers[0].garble(name, times=2)
        found, damages = loads(tiers)
        assert (found.step, found.tier, [d.tier for d in damages]) == (2, 1, [0])


def test_commits_of_which_none_loads_are_an_error_and_never_a_fresh_start(tiers: list[Faulty]) -> None:
    for tier in tiers:
        for step in (1, 2):
            tier.garble(data_file(tier, step), times=1000)
    with pytest.raises(CheckpointError, match=r"none of 2 commits can be read; the state is not usable: .*chunk"):
        loads(tiers)


def test_while_a_tier_is_out_of_reach_its_copy_is_read_and_nothing_is_marked(tiers: list[Faulty]) -> None:
    tiers[0].fail(data_file(tiers[0], 2))
    found, damages = loads(tiers)
    assert (found.step, found.tier, damages) == (2, 1, [])


def test_an_outage_is_retried_then_raised_and_leads_to_no_older_commit(tiers: list[Faulty]) -> None:
    for tier in tiers:
        tier.fail(data_file(tier, 2))
    slept, damages = list[float](), list[Damage]()
    with pytest.raises(StoreUnavailable, match=r"commits/000001-000000002\.json.*not usable"):
        restore(tiers, all_candidates(tiers), empty(), on_damage=damages.append, sleep=slept.append)
    assert (tuple(slept), damages) == (OUTAGE_PAUSES_SECONDS, [])
    assert not [name for _, name in tiers[0].calls + tiers[1].calls if name.startswith("commits/000001-000000001")]


def test_damage_on_one_tier_and_an_outage_of_the_other_lead_to_no_older_commit(tiers: list[Faulty]) -> None:
    tiers[0].garble(data_file(tiers[0], 2), times=1000)
    tiers[1].fail(data_file(tiers[1], 2))
    with pytest.raises(StoreUnavailable):
        loads(tiers)


def test_a_store_that_comes_back_is_read(tiers: list[Faulty]) -> None:
    name = data_file(tiers[0], 2)
    tiers[0].fail(name)
    state = empty()
    newest = [(CommitRef(generation=1, step=2), [0])]
    found = restore(tiers, newest, state, sleep=lambda _: tiers[0].mend(name))
    assert found is not None
    assert found.tier == 0


def test_a_mark_that_cannot_be_made_is_an_outage(tiers: list[Faulty]) -> None:
    """Else the commit would count again for the next generation, and this one go on from an older state."""

    def unable(damage: Damage) -> None:
        raise StoreUnavailable("read-only")

    tiers[0].garble(data_file(tiers[0], 2), times=1000)
    with pytest.raises(StoreUnavailable, match="read-only"):
        restore(tiers, [(CommitRef(generation=1, step=2), [0])], empty(), on_damage=unable, sleep=lambda _: None)


class Forgetful(DefaultLoadPlanner):
    """Plans to read all but one piece."""

    def create_local_plan(self) -> LoadPlan:
        return LoadPlan(super().create_local_plan().items[1:])


def test_a_planner_that_misses_what_the_parts_hold_is_an_error_and_no_damage(
    tiers: list[Faulty], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reshard, "DefaultLoadPlanner", Forgetful)
    damages = list[Damage]()
    with pytest.raises(CheckpointError, match=rf"plans to read 0 of the {ELEMENTS} elements of w .* holds it whole"):
        restore(tiers, all_candidates(tiers), empty(), on_damage=damages.append)
    assert damages == []


def test_parts_that_do_not_hold_a_tensor_whole_are_damage(tmp_path: Path) -> None:
    with Checkpoints(str(tmp_path), verify=False) as ckpt:
        kept, spoilt = (ckpt.save(step, {"w": torch.full((8,), float(step))}).wait() for step in (1, 2))
    store, damages = open_store(str(tmp_path)), list[Damage]()
    part = read_part(store, spoilt, 0)
    cut = part.shards[0].model_copy(update={"size": [4], "bytes": 16})
    raw = part.model_copy(update={"shards": [cut]}).model_dump_json().encode()
    store.write(spoilt.prefix + part_record_name(0), raw)
    parts = {part_record_name(0): digest(raw)}
    store.write(spoilt.ref.name, encode_commit(spoilt.model_copy(update={"parts": parts})))
    found = restore([store], restore_candidates(read_history(store)), {"w": torch.zeros(8)}, on_damage=damages.append)
    assert found is not None
    assert (found.commit, [damage.ref for damage in damages]) == (kept, [spoilt.ref])
    assert "w: 4 elements in all parts, it has 8" in damages[0].error


def test_a_commit_that_was_pruned_meanwhile_is_no_damage(tiers: list[Faulty]) -> None:
    state, damages = empty(), list[Damage]()
    tried = [(CommitRef(generation=1, step=9), [0, 1]), *all_candidates(tiers)]
    found = restore(tiers, tried, state, on_damage=damages.append)
    assert found is not None
    assert (found.step, damages) == (2, [])


def test_no_candidate_is_no_commit(tiers: list[Faulty]) -> None:
    assert restore(tiers, [], empty()) is None


def test_a_commit_that_the_caller_refuses_is_not_loaded(tiers: list[Faulty]) -> None:
    def check(commit: Commit) -> None:
        raise ConfigError(f"data: step {commit.step} is of other data")

    state = empty()
    with pytest.raises(ConfigError, match="step 2 is of other data"):
        restore(tiers, all_candidates(tiers), state, check=check)
    assert not state["w"].any()


def test_a_newer_format_is_refused_in_one_line(tmp_path: Path) -> None:
    with Checkpoints(str(tmp_path)) as ckpt:
        ref = ckpt.save(1, {"w": torch.zeros(2)}).wait().ref
        newer = {"format": FORMAT_VERSION + 1}
        raw = encode_commit(
            Commit(generation=1, step=1, attempt="x", parent=None, world_size=1).model_copy(update=newer)
        )
        open_store(str(tmp_path)).write(ref.name, raw)
        with pytest.raises(CheckpointError, match=rf"has format {FORMAT_VERSION + 1}; this version of Convoy reads"):
            ckpt.restore({"w": torch.zeros(2)})


def test_patience_ends() -> None:
    tried, slept = list[int](), list[float]()

    def work() -> int:
        tried.append(1)
        if len(tried) < 3:
            raise StoreUnavailable("gone")
        return 5

    assert retry_on_outage(work, slept.append) == 5
    assert slept == list(OUTAGE_PAUSES_SECONDS[:2])
    tried.clear()
    with pytest.raises(StoreUnavailable):
        retry_on_outage(lambda: (_ for _ in ()).throw(StoreUnavailable("for ever")), slept.append)


# On ranks: what one of them finds, all of them act upon.


def spread(fill: float) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"w": distribute_tensor(torch.full((3000,), fill), mesh, [Shard(0)]), "step": int(fill)}


def save_two(rank: int, folder: Path) -> None:
    with Checkpoints(str(folder / "job")) as ckpt:
        for step in (1, 2):
            ckpt.save(step, spread(float(step))).wait()


def restore_with_a_fault(rank: int, folder: Path, fault: str) -> tuple[str, int, float, list[int]]:
    """Rank 1 alone sees the fault, in its own part of step 2."""
    store, damages = Faulty(open_store(str(folder / "job"))), list[Damage]()
    mine = next(n for n in store.sizes("shards/") if "-000000002/" in n and n.endswith("00001.000.bin"))
    if rank == 1:
        store.garble(mine, 1000) if fault == "damaged" else store.fail(mine)
    tried = restore_candidates(read_history(store)) if rank == 0 else None
    state, told = spread(0.0), "restored"
    try:
        restore([store], tried, state, group=dist.group.WORLD, on_damage=damages.append, sleep=lambda _: None)
    except StoreUnavailable as error:
        told = str(error)
    return told, state["step"], float(state["w"].full_tensor().min()), [d.ref.step for d in damages]


@pytest.fixture(scope="module")
def of_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("of two")
    in_a_group(2, save_two, folder)
    return folder


def test_damage_that_one_rank_sees_takes_all_to_the_commit_before(of_two: Path) -> None:
    found = in_a_group(2, restore_with_a_fault, of_two, "damaged")
    assert found == [("restored", 1, 1.0, [2]), ("restored", 1, 1.0, [])]


def test_an_outage_that_one_rank_sees_is_an_error_on_all(of_two: Path) -> None:
    first, second = in_a_group(2, restore_with_a_fault, of_two, "unavailable")
    assert first[0] == second[0]
    assert first[0].endswith("the state is not usable")
    assert (first[1], first[3]) == (0, [])


def restore_into_another_model_on_one_rank(rank: int, folder: Path) -> str:
    store = open_store(str(folder / "job"))
    state = spread(0.0) | ({"more": torch.zeros(1)} if rank == 1 else {})
    with pytest.raises(ConfigError) as error:
        restore([store], restore_candidates(read_history(store)), state, group=dist.group.WORLD)
    assert not state["w"].full_tensor().any()
    return str(error.value)


def test_a_model_that_does_not_fit_on_one_rank_is_refused_on_all_and_left_alone(of_two: Path) -> None:
    first, second = in_a_group(2, restore_into_another_model_on_one_rank, of_two)
    assert first == second
    assert "more is (1,) float32 here, and absent in the checkpoint of step 2" in first
