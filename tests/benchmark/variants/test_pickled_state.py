"""gzip + pickle of a state, as people write it by hand."""

import gzip
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from convoy.benchmark.variants.pickled_state import PickledState, TooSlowError
from convoy.checkpoint.state.layout import local_tensor
from tests.ranks import in_a_group


def _state(rank: int, scale: float) -> dict[str, Any]:
    shard = DTensor.from_local(scale * (torch.arange(6.0).reshape(2, 3) + 10 * rank), init_device_mesh("cpu", (2,)))
    cut = DTensor.from_local(local_tensor(shard), shard.device_mesh, [Shard(0)])
    return {"model": {"weight": cut, "norm": scale * torch.ones(4)}, "step": 3}


def _save_and_restore(rank: int, folder: Path) -> tuple[list[float], list[float], list[str]]:
    PickledState(folder, _state(rank, 1.0), rank).save(60.0, lambda: None)
    torch.distributed.barrier()
    state = _state(rank, 0.0)
    pickled = PickledState(folder, state, rank)
    pickled.restore()
    model = state["model"]
    return local_tensor(model["weight"]).flatten().tolist(), model["norm"].tolist(), [p.name for p in pickled.written]


def test_each_rank_has_its_shards_back_and_what_rank_0_wrote_for_all(tmp_path: Path) -> None:
    first, second = in_a_group(2, _save_and_restore, tmp_path)
    assert first == ([0, 1, 2, 3, 4, 5], [1.0] * 4, ["rank00000.pkl.gz", "shared.pkl.gz"])
    assert second == ([10, 11, 12, 13, 14, 15], [1.0] * 4, ["rank00001.pkl.gz"])


def test_what_stages_hold_is_nobody_else_s(tmp_path: Path) -> None:
    pickled = PickledState(tmp_path, {"layer": torch.ones(2)}, 1, stages=True)
    assert [path.name for path in pickled.written] == ["rank00001.pkl.gz"]


def test_of_a_view_only_its_own_bytes_are_written(tmp_path: Path) -> None:
    whole = torch.randn(1000, 100)
    pickled = PickledState(tmp_path, {"view": whole[:10]}, 0)
    pickled.save(60.0, lambda: None)
    assert 3000 < pickled.written_bytes() < 6000
    with gzip.open(pickled.written[0]) as file:
        assert torch.equal(pickle.load(file)["view"], whole[:10])


def test_a_save_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    pickled = PickledState(tmp_path, {"weight": torch.ones(10)}, 0)
    with pytest.raises(TooSlowError, match="was not written after 0 s"):
        pickled.save(0.0, lambda: None)


def test_a_large_tensor_is_written_in_pieces_each_of_which_is_progress(tmp_path: Path) -> None:
    done: list[None] = []
    PickledState(tmp_path, {"weight": torch.zeros(5 * 2**20)}, 0).save(60.0, lambda: done.append(None))
    assert len(done) >= 3  # 20 MiB
