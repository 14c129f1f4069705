"""A user's own module, and weights from a Hugging Face folder, train in the same loop."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.job.events.registry import Evaluated, ModelBuilt
from convoy.model.hf import write_hf
from convoy.model.init import initialise_weights
from convoy.model.transformer import Transformer
from tests.ranks import RankFailedError
from tests.training.faults import die_at
from tests.training.job import GPT, Job, differing, tiny

CUSTOM = {
    "build": "tests.model.user_module:build",
    "args": {"vocabulary": 257, "width": 24},
    "vocab_size": 257,
    "max_sequence_length": 32,
}


def a_job(root: Path, model: dict[str, Any], **train: Any) -> Job:
    return Job(str(root), tiny(model=model, train={"steps": 8} | train, checkpoint={"every_steps": 3}))


def test_a_users_module_trains_on_any_number_of_ranks_alike(tmp_path: Path) -> None:
    alone, several = a_job(tmp_path / "alone", CUSTOM), a_job(tmp_path / "several", CUSTOM)

    alone.run(1)
    several.run(3)

    assert several.losses() == pytest.approx(alone.losses(), abs=1e-5)
    before, after = [e.loss for e in alone.events(Evaluated)]
    assert after < before
    assert alone.events(ModelBuilt)[0].flops_per_token is None


def test_a_users_module_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole, broken = a_job(tmp_path / "whole", CUSTOM), a_job(tmp_path / "broken", CUSTOM)
    whole.run(2)

    broken.run(2, die_at(5, ranks=[0, 1]), may_die=True)
    broken.run(2)

    assert broken.steps_committed() == [3, 6, 8]
    assert differing(broken.state(), whole.state()) == []


@pytest.fixture(scope="module")
def in_bf16(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a user's module."""
    job = a_job(tmp_path_factory.mktemp("plain"), CUSTOM, param_dtype="bf16")
    job.run(2)
    return job.losses()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_a_users_module_trains_in_bf16_with_recomputation(recompute: str, in_bf16: list[float], tmp_path: Path) -> None:
    again = a_job(tmp_path, CUSTOM, param_dtype="bf16", activation_checkpointing=recompute)

    again.run(2)

    assert again.losses() == in_bf16


def from_hf(folder: Path, shape: dict[str, Any]) -> dict[str, Any]:
    """A model that starts from weights in a Hugging Face folder, which is written."""
    config = TransformerConfig(**shape)
    trained = Transformer(config)
    initialise_weights(trained, seed=11)
    write_hf(folder, config, trained.state_dict())
    return shape | {"init_from": str(folder)}


def test_training_goes_on_from_a_hugging_face_folder(tmp_path: Path) -> None:
    model = from_hf(tmp_path / "hf", GPT)
    given = a_job(tmp_path / "given", model)
    seeded = a_job(tmp_path / "seeded", GPT)

    given.run(2, optimizer={"lr": 1e-12})
    seeded.run(2, optimizer={"lr": 1e-12})

    weights = load_file(tmp_path / "hf" / "model.safetensors")
    saved = given.state()["model.embed.token.weight"]
    assert torch.allclose(saved, weights["transformer.wte.weight"], atol=1e-6)
    assert given.events(Evaluated)[0].loss != pytest.approx(seeded.events(Evaluated)[0].loss, abs=1e-3)


def test_a_resumed_job_takes_its_own_weights_not_the_folders(tmp_path: Path) -> None:
    model = from_hf(tmp_path / "hf", GPT)
    whole, broken = a_job(tmp_path / "whole", model), a_job(tmp_path / "broken", model)
    whole.run(1)

    broken.run(1, die_at(4, ranks=[0]), may_die=True)
    broken.run(1)

    assert differing(broken.state(), whole.state()) == []


def test_a_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    other = from_hf(tmp_path / "hf", GPT | {"d_model": 24})

    with pytest.raises(RankFailedError, match=ConfigError.__name__):
        a_job(tmp_path / "job", GPT | {"init_from": other["init_from"]}).run(2)


def test_a_parameter_without_a_gradient_is_told_after_the_first_step(tmp_path: Path) -> None:
    job = a_job(tmp_path, {**CUSTOM, "build": "tests.model.user_module:build_with_a_spare"})

    with pytest.raises(
        RankFailedError, match=r"parameter module\.spare\..* got no gradient in the first step \(2 in all\)"
    ):
        job.run(2)
