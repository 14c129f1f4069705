"""A loop of one's own, in and outside of a gang."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from convoy import script
from convoy.config.errors import ConfigError
from convoy.script.loop import Loop
from tests.script.channel import LEFT, a_dataset, a_model, alone, commits, in_a_gang, weights_of

STEPS_PER_EPOCH = 5


class CountingLoader:
    """As DeepSpeed's: it begins again each time that it is asked for an iterator."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.sampler = RandomSampler(a_dataset(), generator=generator)
        self._loader = DataLoader(a_dataset(), batch_size=4, sampler=self.sampler)

    def __iter__(self) -> Iterator[Any]:
        self._iterator = iter(self._loader)
        return self

    def __next__(self) -> Any:
        return next(self._iterator)


def train(folder: Path, *, own_files: bool = False, save_every: int = 100) -> Any:
    """own_files: the state is written and read by functions, as by a library's.

    The loader, the model and what follows an epoch draw at random.
    """
    torch.manual_seed(0)
    model = a_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}

    def write(path: str) -> None:
        Path(path).mkdir(parents=True)
        torch.save({name: part.state_dict() for name, part in parts.items()}, Path(path, "state.pt"))

    def read(path: str) -> None:
        saved = torch.load(Path(path, "state.pt"))
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    loop = Loop(save=write, load=read, save_every=save_every) if own_files else Loop(parts, save_every=save_every)
    loader = CountingLoader()
    for epoch in loop.epochs(3):
        for inputs, targets in loop.batches(loader):
            optimizer.zero_grad()
            (model(inputs) - targets).square().mean().backward()
            optimizer.step()
        scheduler.step()
        torch.rand(epoch + 1)
    return weights_of(model), loop.step


@pytest.mark.processes
@pytest.mark.parametrize("own_files", [False, True])
def test_a_loop_that_ends_at_any_step_resumes_as_if_it_had_not(own_files: bool, tmp_path: Path) -> None:
    run = partial(train, own_files=own_files)
    expected = alone(run, tmp_path)
    for step in (3, STEPS_PER_EPOCH, 8, 14):
        assert in_a_gang(run, tmp_path, {step: "save_and_end"}) == LEFT
        assert commits(tmp_path, "loop")[-1] == step
    assert in_a_gang(run, tmp_path, {}) == expected
    assert expected[1] == 3 * STEPS_PER_EPOCH


def train_twice(folder: Path) -> Any:
    return [train(folder, save_every=2) for _ in range(2)]


@pytest.mark.processes
def test_each_loop_of_a_script_has_checkpoints_of_its_own(tmp_path: Path) -> None:
    expected = alone(train_twice, tmp_path)
    assert in_a_gang(train_twice, tmp_path, {8: "save_and_end"}) == LEFT
    assert in_a_gang(train_twice, tmp_path, {}) == expected
    assert commits(tmp_path, "loop")
    assert commits(tmp_path, "loop-2")


@pytest.mark.processes
def test_a_loop_saves_every_so_many_steps_and_at_notices_and_ends_at_once_if_it_must(tmp_path: Path) -> None:
    run = partial(train, save_every=8)
    assert in_a_gang(run, tmp_path, {6: "save", 9: "end"}) == LEFT
    assert commits(tmp_path, "loop") == [6, 8]


@pytest.mark.processes
def test_damage_leads_to_the_checkpoint_before(tmp_path: Path) -> None:
    run = partial(train, save_every=4)
    expected = alone(run, tmp_path)
    assert in_a_gang(run, tmp_path, {9: "end"}) == LEFT
    (newest,) = (tmp_path / "job" / "loop" / "shards").glob("*-000000008")
    for file in newest.rglob("*"):
        if file.is_file() and file.stat().st_size > 100:
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)
    assert in_a_gang(run, tmp_path, {}) == expected
    assert 8 in commits(tmp_path, "loop")  # saved again


def test_a_loop_refuses_what_it_could_not_resume() -> None:
    with pytest.raises(ConfigError, match="save_every = 0: must be at least 1"):
        Loop({}, save_every=0)
    with pytest.raises(ConfigError, match="save, load: must both be given"):
        Loop(save=print, save_every=1)
    loop = Loop({}, save_every=1, batches_per_step=2)
    with pytest.raises(ConfigError, match="batches_per_step = 2: must divide the epoch's batches, 5"):
        next(loop.batches([1, 2, 3, 4, 5]))


def test_outside_of_a_gang_a_loop_counts_steps() -> None:
    assert not script.in_gang()
    loop = Loop({}, save_every=1, batches_per_step=2)
    assert [batch for _ in loop.epochs(2) for batch in loop.batches([1, 2])] == [1, 2, 1, 2]
    assert loop.step == 2
