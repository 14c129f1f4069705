"""Errors on one rank that nobody foresaw, and tiers that hang: the others hear of it, and later saves continue."""

from pathlib import Path
from typing import Any

import pytest
import torch

from convoy.checkpoint import CheckpointError, Checkpoints
from tests.checkpoint.test_api import gang, resumed_writer, sharded, stopped_writer


class OutOfMemory:
    """An object whose state cannot be had."""

    def state_dict(self) -> dict[str, Any]:
        raise RuntimeError("CUDA out of memory.\nTried to allocate 2 GiB")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


def save_what_raises(rank: int, uri: str) -> tuple[str, str, int]:
    with Checkpoints(uri) as ckpt:
        with pytest.raises(CheckpointError) as error:
            ckpt.save(1, {"w": torch.ones(3), **({"model": OutOfMemory()} if rank == 1 else {})})
        return str(error.value), type(error.value.__cause__).__name__, ckpt.save(1, sharded()).wait().step


def test_a_state_that_raises_on_one_rank_is_an_error_on_all(tmp_path: Path) -> None:
    told = "rank 1: RuntimeError: CUDA out of memory. Tried to allocate 2 GiB"
    assert gang(2, tmp_path, save_what_raises) == [(told, "NoneType", 1), (told, "RuntimeError", 1)]


def save_what_cannot_be_staged(rank: int, uri: str) -> tuple[str, int]:
    with Checkpoints(uri) as ckpt:
        ckpt.save(1, sharded()).wait()
        if rank == 1:
            put = ckpt._engine._fill_slot

            def put_once(*_: Any) -> None:
                ckpt._engine._fill_slot = put  # type: ignore[method-assign]
                raise ValueError("a bug of ours")

            ckpt._engine._fill_slot = put_once  # type: ignore[method-assign]
        pending = ckpt.save(2, sharded())
        later = ckpt.save(3, sharded(), may_skip=False).wait().step
        with pytest.raises(CheckpointError) as error:
            pending.wait()
        return str(error.value), later


def test_a_state_that_cannot_be_staged_on_one_rank_fails_that_save_alone(tmp_path: Path) -> None:
    assert gang(2, tmp_path, save_what_cannot_be_staged) == [("step 2 was not saved: a bug of ours", 3)] * 2


@pytest.mark.parametrize("where", ["status", "take_reports"])
def test_an_error_of_ours_fails_the_saves_under_way_and_not_the_next_one(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpoints(str(tmp_path)) as ckpt:
        ckpt.save(1, {"w": torch.ones(3)}).wait()
        stopped_writer(ckpt)
        pending = ckpt.save(2, {"w": torch.ones(3)})

        def once(*_: Any) -> Any:
            monkeypatch.undo()
            raise ValueError("a bug")

        monkeypatch.setattr(ckpt._engine if where == "status" else ckpt._engine.writer, where, once)
        with pytest.raises(CheckpointError, match="step 2 may not be saved: ValueError: a bug"):
            pending.wait(timeout_seconds=20.0)
        resumed_writer(ckpt)
        assert ckpt.save(3, {"w": torch.ones(3)}).wait(timeout_seconds=20.0).step == 3


def test_an_error_after_a_commit_leaves_it_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoints(str(tmp_path)) as ckpt:

        def once(*_: Any) -> Any:
            monkeypatch.undo()
            raise ValueError("a bug")

        monkeypatch.setattr(ckpt._driver, "_request_post_commit", once)
        for step in (1, 2):
            assert ckpt.save(step, {"w": torch.ones(3)}).wait(timeout_seconds=20.0).step == step
