"""A gang of one rank, as the script in it sees it: notices come at given steps. And what it ran."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from convoy import script
from convoy.config.checkpoint import StoreConfig
from convoy.gang.workers.board import OrderKind
from convoy.job.lineage import counted_commits, read_history
from convoy.storage import open_store
from tests.ranks import on_ranks

LEFT = "left"
"""The script ended as the gang was to end."""


class Channel:
    """In place of `ScriptChannel`."""

    def __init__(self, folder: Path, orders: dict[int, OrderKind]) -> None:
        self.checkpoints_uri, self.store_config = str(folder / "job"), StoreConfig()
        self.orders = orders
        self.steps = 1
        self.progress: list[int] = []

    def report_progress(self, step: int) -> None:
        self.progress.append(step)

    def poll_order(self) -> OrderKind:
        return self.orders.get(self.progress[-1], "none")

    def set_agreed_order(self, kind: OrderKind) -> None:
        pass


def in_a_gang(train: Callable[[Path], Any], folder: Path, orders: dict[int, OrderKind]) -> Any:
    """What `train(folder)` returns in a process of its own, or LEFT."""
    (result,) = on_ranks(1, _run, train, folder, orders)
    return result


def alone(train: Callable[[Path], Any], folder: Path) -> Any:
    """The same outside of any gang."""
    (result,) = on_ranks(1, _run, train, folder, None)
    return result


def commits(folder: Path, name: str) -> list[int]:
    """Steps of the commits that count."""
    return [ref.step for ref in counted_commits(read_history(open_store(str(folder / "job" / name))))]


def a_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


def a_dataset() -> TensorDataset:
    """20 samples."""
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(20, 4, generator=generator), torch.randn(20, 1, generator=generator))


def weights_of(model: nn.Module) -> dict[str, list[float]]:
    """To be compared bit for bit."""
    return {name: tensor.flatten().tolist() for name, tensor in model.state_dict().items()}


def _run(_: int, train: Callable[[Path], Any], folder: Path, orders: dict[int, OrderKind] | None) -> Any:
    if orders is not None:
        channel: Any = Channel(folder, orders)
        script.attach(channel)
    try:
        return train(folder)
    except SystemExit as end:
        return LEFT if end.code == 0 else end.code
