"""The tensors of a checkpoint have the same names however the model is spread."""

from typing import Any

import pytest
import torch
from torch import nn

from convoy.checkpoint.state.tensors import CachedTensors, tensors_of
from convoy.config.model import TransformerConfig
from convoy.model.counts import checkpoint_bytes
from tests.model.models import FORMS, ready
from tests.training.job import GPT, Job, tiny

WAYS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "hsdp": (2, {"parallel": {"strategy": "hsdp", "shard_size": 1}}),
    "ddp": (2, {"parallel": {"strategy": "ddp"}}),
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
    first, *others = ({name: _kind(value) for name, value in state.items()} for state in states.values())
    assert all(described == first for described in others)


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


@pytest.mark.parametrize("form", FORMS.values(), ids=list(FORMS))
def test_a_plan_counts_what_is_saved(form: TransformerConfig) -> None:
    model = ready(form)
    state = tensors_of(model, torch.optim.AdamW(model.parameters()))  # with the moments that a step would fill
    moments = [t for of_one in state["optimizer"]["state"].values() for t in of_one.values() if t.dim()]
    assert checkpoint_bytes(form) == sum(t.nbytes for t in (*state["model"].values(), *moments))


@pytest.fixture
def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(5, 3)).square().sum().backward()
    optimizer.step()


def same_memory(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_memory(one[key], other[key]) for key in one)
    return bool(one.data_ptr() == other.data_ptr() and torch.equal(one, other))


def replaced_data(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model[0].weight.data = torch.full((4, 3), 5.0)  # type: ignore[index]


def replaced_buffer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model[1].running_mean = torch.full((4,), 5.0)  # type: ignore[index]


def loaded_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state_dict()
    state["state"] = {k: {n: v.clone() + 1 for n, v in s.items()} for k, s in state["state"].items()}
    optimizer.load_state_dict(state)


def more_weights(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model.append(nn.Linear(4, 4))  # type: ignore[operator]
    optimizer.add_param_group({"params": list(model[2].parameters())})  # type: ignore[index]


@pytest.mark.parametrize("change", [replaced_data, replaced_buffer, loaded_optimizer, more_weights])
def test_names_are_asked_for_again_only_when_they_stand_for_other_memory(
    change: Any, trained: tuple[nn.Module, torch.optim.Optimizer]
) -> None:
    named = CachedTensors(*trained)
    first = named()
    assert same_memory(first, tensors_of(*trained))
    step(*trained)
    assert named() is first
    assert same_memory(first, tensors_of(*trained))

    change(*trained)
    assert same_memory(named(), tensors_of(*trained))
    assert named() is not first


def test_numbers_among_the_moments_are_those_of_the_step() -> None:
    weight = nn.Parameter(torch.ones(3))
    model, optimizer = nn.ParameterList([weight]), torch.optim.AdamW([weight])
    named = CachedTensors(model, optimizer)
    named()
    optimizer.state[weight]["step"] = 7
    named()
    optimizer.state[weight]["step"] = 8
    assert named()["optimizer"]["state"]["0"]["step"] == 8


def _kind(value: Any) -> Any:
    return (tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else type(value)
