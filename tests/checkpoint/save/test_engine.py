"""One rank's saves: what is written is the state of the step that was named, and no failure of a writer is felt."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import Commit
from convoy.checkpoint.messages import SaveFailed, SetLayout, WriterSetup
from convoy.checkpoint.restore.load import restore
from convoy.checkpoint.save import staging
from convoy.checkpoint.save.engine import SaveEngine
from convoy.checkpoint.save.queue import StatusCounts, WriteAttempt
from convoy.config.checkpoint import StoreConfig
from convoy.job.lineage import read_history, restore_candidates
from convoy.storage import open_store
from tests.checkpoint.torchless import form
from tests.checkpoint.writers import wait_for

DEADLINE_SECONDS = 20.0
FAILED = StatusCounts(failed=1)
COMMITTED = StatusCounts(committed=1)


class Model(nn.Module):
    """Has weights, and statistics that change in the forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 2000)
        self.norm = nn.BatchNorm1d(2000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.first(x)).sum()


@pytest.fixture
def model() -> Model:
    torch.manual_seed(1)
    return Model()


@pytest.fixture
def optimizer(model: Model) -> torch.optim.Optimizer:
    found = torch.optim.AdamW(model.parameters(), lr=0.1)
    train(model, found)
    return found


def train(model: Model, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(8, 64)).backward()
    optimizer.step()


@pytest.fixture
def uri(tmp_path: Path) -> str:
    form(open_store(str(tmp_path)))
    return str(tmp_path)


def setup(*uris: str) -> WriterSetup:
    return WriterSetup(tiers=list(uris), store=StoreConfig(), keep_last=3, keep_every_steps=None)


@pytest.fixture
def engine(uri: str, optimizer: torch.optim.Optimizer) -> Iterator[SaveEngine]:
    made = SaveEngine(setup(uri), optimizer=optimizer)
    made.writer.start()
    yield made
    made.close()


def draft(step: int) -> Commit:
    return Commit(generation=1, step=step, attempt="draft", parent=None, world_size=1)


def attempt(step: int, slot: int = 0, tier: int = 0) -> WriteAttempt:
    return WriteAttempt(step, slot, tier, f"a-{step}-{tier}")


def settled(engine: SaveEngine, of: WriteAttempt) -> StatusCounts:
    wait_for(lambda: engine.status(of) != StatusCounts())
    return engine.status(of)


def save(engine: SaveEngine, state: dict[str, Any], step: int, slot: int = 0) -> StatusCounts:
    engine.stage(slot, state)
    engine.submit(attempt(step, slot), draft(step), DEADLINE_SECONDS)
    return settled(engine, attempt(step, slot))


def saved_state(uri: str, step: int | None = None) -> dict[str, Any]:
    """What a fresh model gets from the store."""
    model = Model()
    state = {"model": model, "optimizer": torch.optim.AdamW(model.parameters(), lr=9.0), "step": -1}
    tried = restore_candidates(read_history(open_store(uri)))
    restored = restore([open_store(uri)], [c for c in tried if step in (None, c[0].step)], state)
    assert restored is not None
    assert restored.step == state["step"]
    return state


def whole(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    moments = {f"{i}.{k}": v for i, s in enumerate(optimizer.state.values()) for k, v in s.items()}
    found = {name: tensor.clone() for name, tensor in (model.state_dict() | moments).items()}
    return found | {"lr": optimizer.param_groups[0]["lr"]}


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    assert [
        name for name in found if not torch.equal(torch.as_tensor(found[name]), torch.as_tensor(wanted[name]))
    ] == []


def test_training_on_at_once_does_not_change_what_is_saved(
    engine: SaveEngine, uri: str, model: Model, optimizer: torch.optim.Optimizer
) -> None:
    """Statistics change in the forward, weights in the step, whose hook waits for their copy."""
    state = {"model": model, "optimizer": optimizer, "step": 0}
    engine.plan(state)
    for step in range(1, 6):
        state["step"], wanted = step, whole(model, optimizer)
        slot = step % 2
        engine.stage(slot, state)
        state["step"] = -1
        train(model, optimizer)
        engine.submit(attempt(step, slot), draft(step), DEADLINE_SECONDS)

        assert settled(engine, attempt(step, slot)) == COMMITTED
        found = saved_state(uri, step)
        assert_same(whole(found["model"], found["optimizer"]), wanted)


def test_a_state_that_is_not_the_planned_one_fails_its_attempt_and_no_call(engine: SaveEngine, model: Model) -> None:
    engine.plan({"model": model})
    assert save(engine, {"model": model, "more": torch.zeros(2)}, 1) == FAILED
    assert save(engine, {"model": model, "odd": object()}, 2) == FAILED
    errors = [report.error for report in engine.writer.take_reports() if isinstance(report, SaveFailed)]
    assert ["structure" in errors[0], "odd: builtins.object" in errors[1]] == [True, True]


def test_buffers_that_vanish_fail_the_save_under_way_and_no_later_one(
    engine: SaveEngine, uri: str, model: Model, optimizer: torch.optim.Optimizer
) -> None:
    state = {"model": model, "optimizer": optimizer, "step": 1}
    engine.plan(state)
    engine.stage(0, state)
    buffer = Path(engine._slots[0].copy.path)  # type: ignore[union-attr]
    assert buffer.is_relative_to("/dev/shm")
    shutil.rmtree(buffer.parent)
    engine.submit(attempt(1), draft(1), DEADLINE_SECONDS)
    assert settled(engine, attempt(1)) == FAILED
    assert [str(buffer) in r.error for r in engine.writer.take_reports() if isinstance(r, SaveFailed)] == [True]
    for step, slot in [(2, 0), (3, 1), (4, 0)]:
        train(model, optimizer)
        state["step"] = step
        assert save(engine, state, step, slot) == COMMITTED
        assert Path(engine._slots[slot].copy.path).is_relative_to("/dev/shm")  # type: ignore[union-attr]
    found = saved_state(uri, 4)
    assert_same(whole(found["model"], found["optimizer"]), whole(model, optimizer))


def test_a_writer_that_died_fails_its_save_and_the_next_save_has_another(engine: SaveEngine, model: Model) -> None:
    state = {"model": model}
    engine.plan(state)
    for step in (1, 2, 3):
        stopped(engine)
        engine.stage(0, state)
        engine.submit(attempt(step), draft(step), DEADLINE_SECONDS)
        os.kill(writer_of(engine), signal.SIGKILL)
        assert settled(engine, attempt(step)) == FAILED
        assert "the writer process ended" in str(engine.writer.take_reports()[-1])
        assert save(engine, state, 10 + step) == COMMITTED


def test_a_writer_that_hangs_over_an_attempt_that_the_gang_gave_up_is_found_out_by_the_next_which_another_writes(
    engine: SaveEngine, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.checkpoint.save.writer_client.GRACE_SECONDS", 0.2)
    state = {"model": model}
    engine.plan(state)
    assert save(engine, state, 1) == COMMITTED
    stopped(engine)
    engine.stage(0, state)
    before, hung = buffer_of(engine, 0), writer_of(engine)
    engine.submit(attempt(2), draft(2), DEADLINE_SECONDS)
    sent(engine, attempt(2))
    engine.forget(attempt(2))

    engine.stage(0, state)
    assert buffer_of(engine, 0) != before  # the old bytes may still be read
    engine.submit(attempt(3), draft(3), DEADLINE_SECONDS)

    assert settled(engine, attempt(3)) == COMMITTED
    assert writer_of(engine) != hung
    assert save(engine, state, 4) == COMMITTED


def test_an_attempt_that_was_given_up_before_it_was_sent_is_never_sent(
    engine: SaveEngine, uri: str, model: Model
) -> None:
    engine.plan({"model": model})
    engine.stage(0, {"model": model})
    client = engine.writer
    state = client.expect("a-1-0", DEADLINE_SECONDS, coordinator=True)
    engine.forget(attempt(1))
    client.send(state, SetLayout(shards=[], file_bytes=[]), None)  # type: ignore[arg-type]
    assert state.sent_to is None
    assert save(engine, {"model": model}, 2) == COMMITTED


def test_what_is_submitted_before_there_is_a_writer_fails_and_does_not_wait_for_ever(uri: str, model: Model) -> None:
    early = SaveEngine(setup(uri))
    early.plan({"model": model})
    early.stage(0, {"model": model})
    early.submit(attempt(1), draft(1), DEADLINE_SECONDS)
    early._stager.finish_tasks()
    early.writer.start()
    assert settled(early, attempt(1)) == FAILED
    early.close()


def test_a_writer_that_died_with_nothing_to_do_costs_no_save(engine: SaveEngine, model: Model) -> None:
    engine.plan({"model": model})
    assert save(engine, {"model": model}, 1) == COMMITTED
    os.kill(writer_of(engine), signal.SIGKILL)
    os.waitid(os.P_PID, writer_of(engine), os.WEXITED | os.WNOWAIT)
    assert save(engine, {"model": model}, 2) == COMMITTED


def test_a_writer_that_hangs_is_given_up_and_its_buffer_never_written_again(
    engine: SaveEngine, uri: str, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convoy.checkpoint.save.writer_client.GRACE_SECONDS", 0.1)
    monkeypatch.setattr("convoy.checkpoint.save.writer_client.WriterProcess.abandon", lambda _: None)  # as in D state
    state = {"model": model}
    engine.plan(state)
    stopped(engine)
    engine.stage(0, state)
    before = buffer_of(engine, 0)
    engine.submit(attempt(1), draft(1), 0.1)
    hung = writer_of(engine)

    began = time.monotonic()
    assert settled(engine, attempt(1)) == FAILED
    assert time.monotonic() - began < 5.0
    engine.forget(attempt(1))

    assert writer_of(engine) != hung
    engine.submit(attempt(2), draft(2), DEADLINE_SECONDS)  # the same staged bytes once more
    assert settled(engine, attempt(2)) == COMMITTED
    engine.stage(0, state)
    assert buffer_of(engine, 0) != before
    os.kill(hung, signal.SIGKILL)


def test_a_plan_that_fails_is_an_error_that_names_the_tensor(engine: SaveEngine) -> None:
    with pytest.raises(CheckpointError, match=r"odd: a torch\.sparse_coo tensor"):
        engine.plan({"odd": torch.zeros(3).to_sparse()})


def stopped(engine: SaveEngine) -> None:
    """Its writer is ready, and then does nothing more."""
    os.kill(writer_of(engine), signal.SIGSTOP)


def sent(engine: SaveEngine, attempt: WriteAttempt) -> None:
    wait_for(lambda: engine.writer._attempts[attempt.name].sent_to is not None)


def writer_of(engine: SaveEngine) -> int:
    assert engine.writer._writer is not None
    assert engine.writer._writer._process is not None
    return engine.writer._writer._process.pid


def buffer_of(engine: SaveEngine, slot: int) -> str:
    return engine._slots[slot].copy.path  # type: ignore[union-attr]


def test_a_copy_that_fails_beside_training_fails_its_save_alone(
    engine: SaveEngine, model: Model, optimizer: torch.optim.Optimizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as for a lack of memory. Neither the optimizer's step nor a further save may wait for it for ever."""
    state = {"model": model, "optimizer": optimizer, "step": 1}
    engine.plan(state)

    def lacks_memory(*_: object) -> None:
        raise RuntimeError("not enough memory")

    monkeypatch.setattr(staging, "_copy_batches", lambda moves: [lacks_memory])
    assert save(engine, state, 1) == FAILED
    assert [r.error for r in engine.writer.take_reports() if type(r) is SaveFailed] == ["staging: not enough memory"]
    monkeypatch.undo()
    stepping = threading.Thread(target=train, args=(model, optimizer), daemon=True)
    stepping.start()
    stepping.join(DEADLINE_SECONDS)
    assert not stepping.is_alive()
    assert save(engine, state | {"step": 2}, 2) == COMMITTED


def test_an_error_nobody_foresaw_after_the_copy_fails_its_save_and_no_later_one(
    engine: SaveEngine, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It occurs in the thread that stages, without which no later save is sent, and closing waits for ever."""
    engine.plan({"model": model})
    with monkeypatch.context() as patched:
        patched.setattr(staging.StagedCopy, "digests", lambda _: [][0])
        assert save(engine, {"model": model}, 10) == FAILED
    (report,) = [report for report in engine.writer.take_reports() if isinstance(report, SaveFailed)]
    assert report.error == "list index out of range"
    assert save(engine, {"model": model}, 20, slot=1) == COMMITTED
