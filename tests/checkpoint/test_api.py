"""The public API as a script uses it, with and without a process group."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from convoy.checkpoint import CheckpointError, Checkpoints
from convoy.checkpoint.messages import PostCommitRequest
from convoy.checkpoint.save.post_commit import BusyTiers
from convoy.checkpoint.verify.marks import verified_in
from convoy.job.lineage import CommitRef
from convoy.storage import open_store
from tests.checkpoint.writers import wait_for
from tests.ranks import in_a_group, on_ranks

ROWS = 11


def model_and_optimizer(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 300), nn.BatchNorm1d(300), nn.Linear(300, 100))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


@pytest.fixture
def ckpt(tmp_path: Path) -> Iterator[Checkpoints]:
    with Checkpoints(str(tmp_path / "job")) as opened:
        yield opened


@pytest.mark.sampled(2)
def test_a_script_goes_on_where_it_stopped(store_uri: str) -> None:
    model, optimizer = model_and_optimizer(1)
    state = {"model": model, "optimizer": optimizer, "step": 0, "best": (1, float("inf"))}
    with Checkpoints(store_uri, optimizer=optimizer) as ckpt:
        assert ckpt.restore(state) is None
        for step in (2, 3):
            train(model, optimizer)
            state["step"] = step
            pending = ckpt.save(step, state)
        wanted = copied({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        train(model, optimizer)  # at once: the hook waits for the copy
        model[1].running_mean.zero_()
        assert pending.wait().step == 3

    other, fresh = model_and_optimizer(2)
    state = {"model": other, "optimizer": fresh, "step": 0, "best": None}
    with Checkpoints(store_uri, optimizer=fresh) as ckpt:
        restored = ckpt.restore(state)
        assert restored is not None
        assert (restored.step, state["step"], state["best"]) == (3, 3, (1, float("inf")))
        assert same({"model": other.state_dict(), "optimizer": fresh.state_dict()}, wanted)
        assert ckpt.commits()[-1].step == 3
        assert ckpt.verify(3) > 0
        with pytest.raises(CheckpointError, match=r"step 3: the newest commit is of step 3"):
            ckpt.save(3, state)
        train(other, fresh)
        assert ckpt.save(4, state).wait().parent == ckpt.commits()[-2]


def test_without_an_optimizer_all_is_staged_when_save_returns(ckpt: Checkpoints) -> None:
    tensor = torch.arange(1e6)
    wanted = tensor.clone()
    pending = ckpt.save(1, {"t": tensor})
    tensor.zero_()
    pending.wait()
    state = {"t": torch.empty(1_000_000)}
    ckpt.restore(state)
    assert torch.equal(state["t"], wanted)


def test_staged_returns_when_anything_may_change(tmp_path: Path) -> None:
    weights = nn.Parameter(torch.arange(4e6))
    wanted = weights.detach().clone()
    with Checkpoints(str(tmp_path), optimizer=torch.optim.SGD([weights])) as ckpt:
        pending = ckpt.save(1, {"w": weights})
        pending.staged()
        weights.data.zero_()
        pending.wait()
        state = {"w": torch.empty(4_000_000)}
        ckpt.restore(state)
    assert torch.equal(state["w"], wanted)


def test_a_third_save_is_skipped_and_counted(ckpt: Checkpoints, tmp_path: Path) -> None:
    state = {"t": torch.zeros(1000)}
    ckpt.save(1, state).wait()
    stopped_writer(ckpt)
    pending = [ckpt.save(step, state) for step in (2, 3, 4)]
    resumed_writer(ckpt)

    assert [p.skipped for p in pending] == [False, False, True]
    assert ckpt.skipped == 1
    assert [p.wait().step for p in pending[:2]] == [2, 3]
    with pytest.raises(CheckpointError, match="step 4 was skipped"):
        pending[2].wait()
    assert [ref.step for ref in ckpt.commits()] == [1, 2, 3]


def test_a_save_that_may_not_be_skipped_waits_for_its_turn(ckpt: Checkpoints) -> None:
    pending = [ckpt.save(step, {"t": torch.full((5,), float(step))}, may_skip=False) for step in range(1, 6)]
    assert [p.wait().step for p in pending] == [1, 2, 3, 4, 5]


def test_a_staged_save_is_written_though_nobody_waits(ckpt: Checkpoints) -> None:
    for step in (1, 2):
        ckpt.save(step, {"t": torch.zeros(10)})
    wait_for(lambda: [ref.step for ref in ckpt.commits()] == [1, 2])


def test_what_cannot_be_saved_is_named_at_once(ckpt: Checkpoints) -> None:
    with pytest.raises(CheckpointError, match=r"^run\.config: builtins\.object cannot be saved in a checkpoint"):
        ckpt.save(1, {"run": {"config": object()}})
    with pytest.raises(CheckpointError, match=r"^a\.b: two entries"):
        ckpt.save(1, {"a.b": torch.zeros(1), "a": {"b": torch.zeros(1)}})


def test_another_model_is_refused_in_one_line_and_left_alone(ckpt: Checkpoints) -> None:
    ckpt.save(1, {"w": torch.ones(3), "step": 1}).wait()
    for other, told in [
        ({"w": torch.zeros(4), "step": 0}, r"w is \(4,\) float32 here, and \(3,\) float32 in the checkpoint of step 1"),
        ({"w": torch.zeros(3, dtype=torch.bfloat16), "step": 0}, r"w is \(3,\) bfloat16 here"),
        ({"w": torch.zeros(3), "v": torch.zeros(1), "step": 0}, r"v is \(1,\) float32 here, and absent"),
        ({"w": torch.zeros(3)}, r"step is absent here, and a plain value in"),
    ]:
        with pytest.raises(CheckpointError, match=told):
            ckpt.restore(other)
        assert not other["w"].any()  # type: ignore[attr-defined]


def test_a_structure_that_changes_is_planned_anew(ckpt: Checkpoints) -> None:
    ckpt.save(1, {"w": torch.ones(3)}).wait()
    ckpt.save(2, {"w": torch.ones(3), "v": torch.full((70_000,), 2.0)}).wait()
    state = {"w": torch.zeros(3), "v": torch.zeros(70_000)}
    ckpt.restore(state)
    assert state["w"].all()
    assert bool((state["v"] == 2).all())


def test_a_structure_that_changes_fails_no_save_that_is_under_way(ckpt: Checkpoints) -> None:
    state = {"w": torch.ones(3)}
    ckpt.save(1, state).wait()
    stopped_writer(ckpt)
    pending = []
    for step, added in [(2, "u"), (3, "v"), (4, "x")]:
        pending.append(ckpt.save(step, dict(state)))
        state[added] = torch.zeros(2)
    resumed_writer(ckpt)
    assert [p.skipped or set(p.wait().tensors) for p in pending] == [{"w"}, {"w", "u"}, True]


def test_a_rewound_store_goes_on_from_there(ckpt: Checkpoints) -> None:
    for step in (1, 2, 3):
        ckpt.save(step, {"t": torch.full((10,), float(step))}).wait()
    assert ckpt.rewind(2).step == 2
    state = {"t": torch.zeros(10)}
    restored = ckpt.restore(state)
    assert restored is not None
    assert (restored.step, float(state["t"][0])) == (2, 2.0)
    ckpt.save(3, {"t": torch.full((10,), 30.0)}).wait()
    ckpt.restore(state)
    assert float(state["t"][0]) == 30.0


def test_who_was_overtaken_by_another_opening_of_the_store_is_told(tmp_path: Path) -> None:
    state = {"t": torch.zeros(10)}
    with Checkpoints(str(tmp_path)) as old, Checkpoints(str(tmp_path)) as new:
        old.save(1, state).wait()
        new.save(2, state).wait()
        with pytest.raises(CheckpointError, match="superseded"):
            old.save(3, state).wait()
        with pytest.raises(CheckpointError, match="superseded"):
            old.save(4, state)
        assert [ref.step for ref in new.commits()] == [1, 2]


def test_while_the_first_tier_takes_nothing_the_next_one_has_the_commit(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    state = {"t": torch.full((10,), 5.0)}
    with Checkpoints(str(first), tiers=[str(second)]) as ckpt:
        ckpt.save(1, state).wait()
        (first / "shards").rename(first / "away")
        (first / "shards").write_text("in the way")
        assert ckpt.save(2, state).wait().step == 2
        assert ckpt.save(3, state).wait().step == 3
    assert [path.name[-6:] for path in (second / "shards" / "000001-000000003").iterdir()] == ["0002-1"]
    assert "commits/000001-000000002.json" in open_store(str(second)).sizes("commits/")
    with Checkpoints(str(first), tiers=[str(second)]) as ckpt:
        found = {"t": torch.zeros(10)}
        restored = ckpt.restore(found)
        assert restored is not None
        assert (restored.step, restored.tier) == (3, 1)
        assert torch.equal(found["t"], state["t"])


def test_a_store_that_takes_nothing_fails_the_save_and_not_the_training(ckpt: Checkpoints, tmp_path: Path) -> None:
    state = {"t": torch.zeros(10)}
    ckpt.save(1, state).wait()
    (tmp_path / "job" / "commits").rename(tmp_path / "job" / "away")
    (tmp_path / "job" / "commits").write_text("in the way")
    with pytest.raises(CheckpointError, match="step 2 was not saved"):
        ckpt.save(2, state).wait()
    (tmp_path / "job" / "commits").unlink()
    (tmp_path / "job" / "away").rename(tmp_path / "job" / "commits")
    assert ckpt.save(2, state).wait().step == 2


def test_an_emergency_save_is_there_on_return_whatever_the_writer_is_stuck_in(ckpt: Checkpoints) -> None:
    state = {"t": torch.ones(10)}
    ckpt.save(1, state).wait()
    stopped_writer(ckpt)
    ckpt.save(2, state)
    state["t"].fill_(3.0)
    ckpt.save(3, state, emergency=True)
    assert ckpt.commits()[-1].step == 3
    resumed_writer(ckpt)


def test_importing_the_package_imports_no_torch() -> None:
    code = "import sys; from convoy.checkpoint import CheckpointError; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def stopped_writer(ckpt: Checkpoints) -> None:
    os.kill(ckpt._engine.writer._writer._process.pid, signal.SIGSTOP)  # type: ignore[union-attr]


def resumed_writer(ckpt: Checkpoints) -> None:
    os.kill(ckpt._engine.writer._writer._process.pid, signal.SIGCONT)  # type: ignore[union-attr]


def run_in(rank: int, folder: Path, script: str) -> str:
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as told:
        exec(script, {})
    return told.getvalue().strip()


def test_the_documented_example_runs_and_resumes_where_it_stopped(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "checkpoints.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0]
    assert on_ranks(1, run_in, tmp_path, code) == ["300"]
    assert on_ranks(1, run_in, tmp_path, code) == [""], "it is done"
    assert on_ranks(1, run_in, tmp_path, code.replace("< 300", "< 500")) == ["500"]
    with Checkpoints(str(tmp_path / "checkpoints/my-job")) as ckpt:
        assert {1, 2} == {ref.generation for ref in ckpt.commits()}


# In a process group.


def gang(world: int, folder: Path, function: Any, *args: Any) -> list[Any]:
    return in_a_group(world, function, str(folder / "job"), *args)


def sharded(fill: float | None = None) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = torch.arange(ROWS * 10.0).reshape(ROWS, 10) if fill is None else torch.full((ROWS, 10), fill)
    return {
        "w": distribute_tensor(whole, mesh, [Shard(0)]),
        "r": distribute_tensor(whole * 2, mesh, [Replicate()]),
        "plain": whole * 3,
        "step": 0 if fill is not None else 7,
    }


def whole(value: Any) -> Any:
    return value.full_tensor() if isinstance(value, DTensor) else value


def save_and_skip(rank: int, uri: str) -> list[Any]:
    with Checkpoints(uri) as ckpt:
        pending = [ckpt.save(1, sharded())]
        pending[0].wait()
        if rank == 1:
            stopped_writer(ckpt)  # only one rank is slow: all skip
        dist.barrier()
        pending += [ckpt.save(step, sharded()) for step in (2, 3, 4)]
        dist.barrier()
        if rank == 1:
            resumed_writer(ckpt)
        return [p.skipped or p.wait().step for p in pending]


def test_all_ranks_have_the_same_commits_and_skip_the_same_saves(tmp_path: Path) -> None:
    assert gang(2, tmp_path, save_and_skip) == [[1, 2, 3, True]] * 2
    assert gang(3, tmp_path, restored) == [(3, True)] * 3


def save_while_one_rank_settles(rank: int, uri: str) -> list[Any]:
    with Checkpoints(uri) as ckpt:
        ckpt.save(1, sharded()).wait()
        if rank == 1:
            stopped_writer(ckpt)
        dist.barrier()
        pending = [ckpt.save(step, sharded()) for step in (2, 3)]
        driver, agreement, align = ckpt._driver, ckpt._agreement, ckpt._agreement.align

        def align_and_go_on(views: Any) -> Any:
            """Rank 0 learns that save 2 is committed after it told the others that it is under way; rank 1 does not."""
            concluded = align(views)
            if rank == 1:
                driver.lock.acquire()
                resumed_writer(ckpt)
            else:
                wait_for(lambda: len(driver.steps) <= 1)
            return concluded

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(agreement, "align", align_and_go_on)
            pending.append(ckpt.save(4, sharded()))
        if rank == 1:
            driver.lock.release()
        dist.barrier()
        pending.append(ckpt.save(5, sharded(), may_skip=False))
        return [p.skipped or p.wait().step for p in pending]


def test_whether_a_save_is_skipped_follows_from_what_the_ranks_told_alone(tmp_path: Path) -> None:
    assert gang(2, tmp_path, save_while_one_rank_settles) == [[2, 3, True, 5]] * 2


def save_beside_a_rank_that_reads_back(rank: int, uri: str) -> list[tuple[int, bool, bool]]:
    """Which steps are to be read back and copied here, as asked of the writer process."""
    with Checkpoints(uri, tiers=[f"{uri}-2"]) as ckpt:
        asked = list[tuple[int, bool, bool]]()
        writer, after_commit = ckpt._engine.writer, ckpt._engine.writer.request_post_commit

        def ask(request: PostCommitRequest) -> None:
            asked.append((request.ref.step, request.verify_part is not None, bool(request.copy_to)))
            after_commit(request)

        writer.request_post_commit = ask  # type: ignore[method-assign]
        ckpt.save(1, sharded()).wait()
        busy = writer.busy
        reading, copying = BusyTiers(reading_back=frozenset({0})), BusyTiers(copying=frozenset({1}))
        for step, told in [(2, reading), (3, copying), (4, BusyTiers())]:
            writer.busy = lambda told=told: told if rank == 1 else BusyTiers()  # type: ignore[misc, method-assign]
            ckpt.save(step, sharded()).wait()
        writer.busy = busy  # type: ignore[method-assign]
        dist.barrier()
        return asked


def test_what_one_rank_is_busy_with_is_asked_of_no_rank(tmp_path: Path) -> None:
    wanted = [(1, True, True), (2, False, True), (3, True, False), (4, True, True)]
    assert gang(2, tmp_path, save_beside_a_rank_that_reads_back) == [wanted] * 2


def save_last_while_the_gang_is_busy(rank: int, uri: str) -> None:
    with Checkpoints(uri, tiers=[f"{uri}-2"]) as ckpt:
        ckpt.save(1, sharded()).wait()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ckpt._engine.writer, "busy", lambda: BusyTiers(frozenset({0}), frozenset({1})))
            ckpt.save(2, sharded()).wait()


def test_the_last_commit_is_read_back_and_copied_before_the_store_is_closed(tmp_path: Path) -> None:
    gang(2, tmp_path, save_last_while_the_gang_is_busy)
    for tier in ("job", "job-2"):
        assert CommitRef(generation=1, step=2) in verified_in(open_store(str(tmp_path / tier)))


def restored(rank: int, uri: str) -> tuple[int, bool]:
    with Checkpoints(uri) as ckpt:
        state, wanted = sharded(-1.0), sharded()
        found = ckpt.restore(state)
        assert found is not None
        return found.step, all(same(whole(state[key]), whole(wanted[key])) for key in wanted)


def save_one_that_fails(rank: int, uri: str) -> list[str]:
    told = []
    with Checkpoints(uri, deadline_seconds=20.0) as ckpt:
        ckpt.save(1, sharded()).wait()
        if rank == 1:
            stopped_writer(ckpt)
        pending = ckpt.save(2, sharded())
        if rank == 1:
            os.kill(ckpt._engine.writer._writer._process.pid, signal.SIGKILL)  # type: ignore[union-attr]
            with pytest.raises(CheckpointError) as error:
                pending.wait()
            told.append(str(error.value))
        dist.barrier()
        later = ckpt.save(3, sharded())  # the others hear here what rank 1 knows
        if rank != 1:
            with pytest.raises(CheckpointError) as error:
                pending.wait()
            told.append(str(error.value))
        told.append(str(later.wait().step))
    return told


def test_a_rank_whose_part_failed_fails_the_save_for_all_and_the_next_one_commits(tmp_path: Path) -> None:
    assert gang(3, tmp_path, save_one_that_fails) == [["step 2 was not saved: the writer process ended", "3"]] * 3


def save_that_the_coordinator_fails(rank: int, uri: str) -> str:
    with Checkpoints(uri, tiers=[f"{uri}-2"]) as ckpt:
        ckpt.save(1, sharded()).wait()
        link = ckpt._engine.writer
        send = link.send

        def send_wrong(given: Any, layout: Any, request: Any) -> None:
            send(given, layout, request.model_copy(update={"buffer": "/nowhere"}))

        if rank == 0:
            link.send = send_wrong  # type: ignore[method-assign]
        with pytest.raises(CheckpointError) as error:
            ckpt.save(2, sharded()).wait(timeout_seconds=20.0)
        return str(error.value)


def test_a_coordinator_that_fails_is_heard_of_long_before_the_deadline(tmp_path: Path) -> None:
    first, second = gang(2, tmp_path, save_that_the_coordinator_fails)
    assert first == "step 2 was not saved: [Errno 2] No such file or directory: '/nowhere'"
    assert second == "step 2 was not saved: writer 0: [Errno 2] No such file or directory: '/nowhere'"


def wrong_on_one_rank(rank: int, uri: str) -> list[str]:
    told = []
    with Checkpoints(uri) as ckpt:
        for state in ({"odd": object() if rank == 0 else 1}, {"w": torch.zeros(2 + rank)}):
            with pytest.raises(CheckpointError) as error:
                ckpt.save(1, state)
            told.append(str(error.value))
        told.append(str(ckpt.save(1, sharded()).wait().step))
    return told


def test_what_is_wrong_on_one_rank_is_told_on_all(tmp_path: Path) -> None:
    first, second = gang(2, tmp_path, wrong_on_one_rank)
    assert first == second
    assert ["rank 0: odd: builtins.object" in first[0], "w: ((2,), 'float32') on rank 0" in first[1]] == [True, True]
    assert first[2] == "1"


def save_without_rank_2(rank: int, uri: str, strategy: str) -> str:
    mesh = init_device_mesh("cpu", (3,))
    placed = Shard(0) if strategy == "sharded" else Replicate()
    state = {"w": distribute_tensor(torch.arange(3000.0), mesh, [placed]), "step": 5}
    with Checkpoints(uri) as ckpt:
        ckpt.save(1, state).wait()
        dist.barrier()
        if rank == 2:
            return "gone"
        try:
            return str(ckpt.save(2, state, emergency=True, reachable=[0, 1]).wait().step)
        except CheckpointError as error:
            return str(error)


def test_the_ranks_that_are_left_save_alone_if_they_hold_every_shard(tmp_path: Path) -> None:
    assert gang(3, tmp_path, save_without_rank_2, "replicated") == ["2", "2", "gone"]
    with Checkpoints(str(tmp_path / "job")) as ckpt:
        state = {"w": torch.zeros(3000), "step": 0}
        found = ckpt.restore(state)
        assert found is not None
        assert (found.step, state["step"], bool((state["w"] == torch.arange(3000.0)).all())) == (2, 5, True)


def test_an_emergency_save_is_refused_when_a_shard_is_out_of_reach(tmp_path: Path) -> None:
    told = gang(3, tmp_path, save_without_rank_2, "sharded")
    assert told == ["shards that only rank 2 holds are out of reach: the state is not whole"] * 2 + ["gone"]


def test_opened_in_a_thread_that_ends_it_goes_on(tmp_path: Path) -> None:
    """The writer process dies with the thread that started it."""
    opened: list[Checkpoints] = []
    thread = threading.Thread(target=lambda: opened.append(Checkpoints(str(tmp_path))))
    thread.start()
    thread.join()
    with opened[0] as ckpt:
        for step in (1, 2):
            assert ckpt.save(step, {"t": torch.zeros(10)}).wait().step == step


def test_a_save_that_another_waits_behind_is_not_held_back(tmp_path: Path) -> None:
    state = {"w": torch.randn(8 * 2**20)}  # 34 MB: 30 s at the slowest that a part is held back to
    with Checkpoints(str(tmp_path), write_mb_per_second=0.5) as ckpt:
        ckpt.save(1, state)
        time.sleep(2.0)
        assert not ckpt.commits()
        ckpt.save(2, state)
        deadline = time.monotonic() + 15.0
        while not ckpt.commits():
            assert time.monotonic() < deadline, "the first save was still held back"
            time.sleep(0.05)
