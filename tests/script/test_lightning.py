"""ConvoyCallback for Lightning: what is trained is what Lightning alone trains, wherever it was interrupted."""

import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from convoy.script.lightning import ConvoyCallback
from tests.ranks import RankFailedError
from tests.script.channel import LEFT, a_dataset, a_model, alone, commits, in_a_gang, weights_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

BATCHES = 5
"""Of an epoch."""


class Module(L.LightningModule):
    """It draws at random in each step, and changes the rate at the end of an epoch by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.model = a_model()
        self.ended = torch.nn.Parameter(torch.zeros(1), requires_grad=False)
        self.validated = torch.nn.Parameter(torch.zeros(1), requires_grad=False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        inputs, targets = batch
        return (self.model(inputs) - targets).square().mean()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        torch.rand(3)
        self.validated += 1

    def on_train_epoch_end(self) -> None:
        self.ended += 1

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)]


def train(
    folder: Path,
    *,
    validate: bool = False,
    accumulate: int = 1,
    loader: Any = DataLoader,
    workers: int = 0,
    own_generator: bool = False,
    every: int | None = None,
    max_steps: int = -1,
    validate_every: int | None = None,
    alone: bool = False,
) -> Any:
    """every: steps between Lightning's own checkpoints; None: epochs. max_steps: -1: three epochs. validate_every:
    batches between validations; None: epochs. alone: without Convoy's line."""
    L.seed_everything(0, verbose=False)
    module = Module()
    generator = torch.Generator().manual_seed(5) if own_generator else None
    data = loader(a_dataset(), batch_size=4, shuffle=True, num_workers=workers, generator=generator)
    own = [ModelCheckpoint(every_n_train_steps=every)] if every else []
    trainer = L.Trainer(
        max_epochs=3 if max_steps == -1 else -1,
        max_steps=max_steps,
        val_check_interval=validate_every,
        accelerator="cpu",
        accumulate_grad_batches=accumulate,
        callbacks=[*own, *([] if alone else [ConvoyCallback()])],
        default_root_dir=folder / "lightning",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, data, data if validate else None)
    return weights_of(module), trainer.global_step, trainer.current_epoch


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"validate": True},
        {"accumulate": 2},
        {"loader": StatefulDataLoader},
        {"workers": 1, "every": 2},
        {"own_generator": True},
    ],
    ids=str,
)
def test_a_script_that_ends_at_any_step_resumes_as_if_it_had_not(options: dict[str, Any], tmp_path: Path) -> None:
    run = partial(train, **options)
    expected = alone(partial(run, alone=True), tmp_path)
    assert expected[0]["ended"] == [3.0]
    steps = (2, 3, 7) if "accumulate" in options else (3, BATCHES, 8, 14)
    for step in steps:
        assert in_a_gang(run, tmp_path, {step: "save_and_end"}) == LEFT
        assert commits(tmp_path, "lightning")[-1] == step
    assert in_a_gang(run, tmp_path, {}) == expected


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("options", "saved"),
    [
        ({"validate": True, "validate_every": 2}, {3: 3, 4: 5, 9: 10, 12: 13}),  # batches 2 and 4 are validated after
        ({"max_steps": 12}, {4: 4, 5: 6, 10: 11}),
        ({"max_steps": 12, "validate": True}, {5: 6, 8: 8}),
    ],
    ids=str,
)
def test_where_a_resume_would_not_be_exact_a_later_step_is_saved(
    options: dict[str, Any], saved: dict[int, int], tmp_path: Path
) -> None:
    """saved: the step that is committed, by the step at which the gang is to save and end."""
    run = partial(train, **options)
    expected = alone(partial(run, alone=True), tmp_path)
    for ordered, step in saved.items():
        assert in_a_gang(run, tmp_path, {ordered: "save_and_end"}) == LEFT
        assert commits(tmp_path, "lightning")[-1] == step
    assert in_a_gang(run, tmp_path, {}) == expected


def test_it_saves_when_lightning_does_and_ends_at_once_if_it_must(tmp_path: Path) -> None:
    assert in_a_gang(train, tmp_path, {8: "end"}) == LEFT
    assert commits(tmp_path, "lightning") == [BATCHES]
    expected = alone(partial(train, alone=True), tmp_path)
    assert in_a_gang(train, tmp_path, {}) == expected


def test_a_training_that_ended_is_not_repeated(tmp_path: Path) -> None:
    expected = in_a_gang(train, tmp_path, {})
    assert commits(tmp_path, "lightning")[-1] == 3 * BATCHES
    assert in_a_gang(train, tmp_path, {1: "end"}) == expected


def test_a_trainer_that_trains_on_each_rank_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RankFailedError, match=r"ConfigError: .*each training has 1 of the gang's 2 ranks: set devices"):
        in_a_gang(train_as_one_of_two, tmp_path, {})


def train_as_one_of_two(folder: Path) -> Any:
    os.environ["WORLD_SIZE"] = "2"
    return train(folder)
