"""The tensors of a checkpoint have the same names however the model is spread."""

from typing import Any

import pytest
import torch

from tests.training.job import GPT, Job, tiny

WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "hsdp": (2, {"parallel": {"strategy": "hsdp", "shard_size": 1}}),
    "by linear, recomputed": (2, {"parallel": {"wrap": "linear"}, "train": {"activation_checkpointing": "full"}}),
}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """All that is saved after one step, by way of sharding."""
    found = {}
    for way, (world, changed) in WAYS.items():
        config = tiny(**{**changed, "train": {"steps": 1} | changed.get("train", {})})
        job = Job(str(tmp_path_factory.mktemp("job")), config)
        job.run(world)
        found[way] = job.state()
    return found


def test_names_shapes_and_types_do_not_depend_on_the_way(states: dict[str, dict[str, Any]]) -> None:
    described = [{name: _kind(value) for name, value in state.items()} for state in states.values()]
    assert described[0] == described[1] == described[2]


def test_weights_and_moments_are_fp32_and_each_weight_has_both(states: dict[str, dict[str, Any]]) -> None:
    state = states["one rank"]
    weights = {name.removeprefix("model.") for name in state if name.startswith("model.")}
    assert "embed.token.weight" in weights
    for moment in ("exp_avg", "exp_avg_sq", "step"):
        assert {f"optimizer.state.{name}.{moment}" for name in weights - {"head.weight"}} <= state.keys()
    assert {t.dtype for t in state.values()} == {torch.float32}
    assert GPT["d_model"] in state["model.embed.token.weight"].shape


def test_an_optimizer_counts_one_step_after_one_step(states: dict[str, dict[str, Any]]) -> None:
    counts = [value for name, value in states["one rank"].items() if name.endswith(".step")]
    assert counts
    assert {float(count) for count in counts} == {1.0}


def _kind(value: Any) -> Any:
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else type(value)
