"""What makes another training."""

import pytest

from convoy.config.loader import read_overrides, resolve
from convoy.config.model import TransformerConfig
from convoy.config.parallel import ParallelConfig
from convoy.config.run import MODEL_UNTIMED, TRAIN, RunConfig, training_hash
from convoy.config.train import TrainConfig


def hashed(words: str = "") -> str:
    return training_hash(resolve({}, read_overrides(words)))


@pytest.mark.parametrize(
    "words",
    [
        "train.micro_batch=2", "train.param_dtype=fp32", "train.prefetch_steps=0", "model.n_layers=5",
        "data.sequence_length=128", "data.packing=false", "optimizer.fused=false", "parallel.strategy=ddp",
        "checkpoint.every_steps=9", "checkpoint.write_mb_per_second=null",
    ],
)  # fmt: skip
def test_what_steps_and_saves_follow_from_makes_another(words: str) -> None:
    assert hashed(words) != hashed()


@pytest.mark.parametrize(
    "words",
    [
        "train.steps=9", "train.seed=3", "train.log_every_steps=5", "train.matmul_peak_seconds=0",
        "train.prefetch_steps=4", "train.node_check_seconds=0", "train.clip_norm=null", "optimizer.lr=1e-4",
        "optimizer.betas=[0.9,0.99]", "schedule.kind=linear", "model.name=other", "model.init_std=0.01",
        "data.cache=/elsewhere", "data.validation_fraction=0.1", "checkpoint.verify=false",
        "checkpoint.retention.keep_last=9", "checkpoint.tiers=[/b]", "cluster.nodes=4", "root=/elsewhere",
        "budget.max_hours=3", "evaluation.every_steps=9",
    ],
)  # fmt: skip
def test_what_they_do_not_follow_from_makes_none(words: str) -> None:
    assert hashed(words) == hashed()


def test_a_key_of_a_later_version_makes_no_other_of_what_does_not_set_it() -> None:
    class Later(ParallelConfig):
        new: int = 1

    config = RunConfig()
    later = config.model_copy(update={"parallel": Later()})
    assert training_hash(later) == training_hash(config)
    assert hashed("train.micro_batch=8") == hashed()  # the default, spelled out


def test_the_names_are_those_of_keys() -> None:
    assert set(TRAIN) < set(TrainConfig.model_fields)
    assert set(MODEL_UNTIMED) < set(TransformerConfig.model_fields)
