"""ConvoyCallback for transformers.Trainer: what is trained is what the Trainer alone trains, wherever it was
interrupted."""

import json
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from convoy.config.errors import ConfigError
from convoy.script.transformers import ConvoyCallback
from tests.ranks import RankFailedError
from tests.script.channel import LEFT, alone, commits, in_a_gang, weights_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]

logging.getLogger("transformers").setLevel(logging.ERROR)

BATCHES = 5
"""Of an epoch."""


class Tokens(Dataset[Any]):
    """20 samples."""

    def __init__(self) -> None:
        self.tokens = torch.randint(0, 64, (20, 8), generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def make(folder: Path, *, alone: bool = False, **options: Any) -> Trainer:
    """A Trainer whose model has dropout. alone: without Convoy's line. options: arguments of the training."""
    set_seed(0)
    config = GPT2Config(
        vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0, pad_token_id=0
    )
    settings = {"num_train_epochs": 3, "save_strategy": "no"} | options
    args = TrainingArguments(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        **settings,
    )
    callbacks = None if alone else [ConvoyCallback()]
    return Trainer(model=GPT2LMHeadModel(config), args=args, train_dataset=Tokens(), callbacks=callbacks)


def train(folder: Path, resume: str | bool | None = None, **options: Any) -> Any:
    trainer = make(folder, **options)
    result = trainer.train(resume_from_checkpoint=resume)
    return weights_of(trainer.model), result.global_step, trainer.state.epoch


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options", [{}, {"gradient_accumulation_steps": 2}, {"max_steps": 13}, {"dataloader_num_workers": 1}], ids=str
)
def test_a_script_that_ends_at_any_step_resumes_as_if_it_had_not(options: dict[str, Any], tmp_path: Path) -> None:
    run = partial(train, **options)
    expected = alone(partial(run, alone=True), tmp_path)
    for step in (2, 3, 7) if "gradient_accumulation_steps" in options else (3, BATCHES, 8, 12):
        assert in_a_gang(run, tmp_path, {step: "save_and_end"}) == LEFT
        assert commits(tmp_path, "trainer")[-1] == step
    assert in_a_gang(run, tmp_path, {}) == expected


def test_it_saves_when_the_trainer_does_and_what_is_damaged_is_never_resumed_from(tmp_path: Path) -> None:
    """Neither are the Trainer's files that were changed after it wrote them, nor a checkpoint that it did not finish,
    although the script asks for its newest."""
    run = partial(train, save_strategy="steps", save_steps=4, resume=None)
    expected = alone(partial(run, alone=True), tmp_path)
    assert in_a_gang(run, tmp_path, {9: "end"}) == LEFT
    assert commits(tmp_path, "trainer") == [0, 4, 8]
    for weights in (tmp_path / "out").glob("checkpoint-*/model.safetensors"):
        weights.write_bytes(weights.read_bytes()[:-100] + bytes(100))
    torn = tmp_path / "out" / "checkpoint-9"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"torn")
    (newest,) = (tmp_path / "job" / "trainer" / "shards").glob("*-000000008")
    for file in newest.rglob("*"):
        if file.is_file() and file.stat().st_size > 1000:
            file.write_bytes(file.read_bytes()[:-500] + bytes(500))
    assert in_a_gang(partial(run, resume=True), tmp_path, {9: "end"}) == LEFT
    assert [path.name for path in newest.parent.glob("*-000000008")] != [newest.name]  # written again
    assert in_a_gang(partial(run, resume=True), tmp_path, {}) == expected


def test_a_job_that_was_killed_before_its_first_checkpoint_begins_again(tmp_path: Path) -> None:
    """What it left half written does not count, though the script asks for the newest."""
    expected = alone(partial(train, alone=True), tmp_path)
    assert in_a_gang(train, tmp_path, {2: "end"}) == LEFT
    (tmp_path / "out" / "checkpoint-2").mkdir()
    assert in_a_gang(partial(train, resume=str(tmp_path / "out" / "checkpoint-2")), tmp_path, {}) == expected


def test_a_job_goes_on_from_a_checkpoint_of_before_and_keeps_it(tmp_path: Path) -> None:
    run = partial(train, save_strategy="steps", save_steps=4)
    expected = alone(partial(run, alone=True), tmp_path)
    before = tmp_path / "out" / "checkpoint-8"
    assert json.loads((before / "trainer_state.json").read_text())["global_step"] == 8
    assert in_a_gang(partial(run, resume=str(before)), tmp_path, {9: "end"}) == LEFT
    assert commits(tmp_path, "trainer") == [8]
    (before / "model.safetensors").unlink()
    assert in_a_gang(partial(run, resume=str(before)), tmp_path, {}) == expected


def test_a_training_that_ended_at_the_end_of_an_epoch_is_not_repeated(tmp_path: Path) -> None:
    run = partial(train, save_strategy="epoch")
    expected = in_a_gang(run, tmp_path, {})
    assert commits(tmp_path, "trainer")[-1] == 3 * BATCHES
    assert in_a_gang(run, tmp_path, {1: "end"}) == expected


def construct(folder: Path) -> None:
    make(folder, save_only_model=True)


def add_later(folder: Path) -> None:
    trainer = make(folder, alone=True)
    trainer.add_callback(ConvoyCallback())
    trainer.train()


def refusal(begin: Callable[[Path], None], folder: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        begin(folder)
    return str(refused.value)


def test_what_could_not_resume_is_refused(tmp_path: Path) -> None:
    assert in_a_gang(partial(refusal, construct), tmp_path, {}).startswith("save_only_model = True: must be False")
    assert "must be one of the Trainer's `callbacks`" in in_a_gang(partial(refusal, add_later), tmp_path, {})


def test_a_trainer_that_trains_on_each_rank_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RankFailedError, match=r"ConfigError: .*has 1 of the gang's 2 ranks: .*use_cpu=True"):
        in_a_gang(train_as_one_of_two, tmp_path, {})


def train_as_one_of_two(folder: Path) -> Any:
    trainer = make(folder)
    os.environ["WORLD_SIZE"] = "2"
    return trainer.train()
