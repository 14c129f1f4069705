"""Data of the workloads: drawn from each sample's index, or small real data that packages contain."""

import sysconfig
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset

Sample = dict[str, Any]

SYNTHETIC_SAMPLES = 100_000

MASKED_SHARE = 0.15
"""Of a sequence, what BERT masks (Devlin et al. 2018); here always by the mask's own id."""

BYTES = 256
MASK = BYTES
"""Id of the mask where ids are bytes."""

_TEXT_BYTES = 4_000_000


def images(split: str, kind: Literal["synthetic", "digits"], side: int = 32, classes: int = 10) -> Dataset[Sample]:
    """Images with one label each: noise, or scikit-learn's 1,797 handwritten digits, enlarged."""
    return SyntheticImages(side, classes) if kind == "synthetic" else Digits(split, side)


def masked_text(
    split: str, kind: Literal["synthetic", "stdlib"], length: int, vocabulary: int = BYTES + 4
) -> Dataset[Sample]:
    """Sequences of which some tokens are masked: random ids, or bytes of the standard library's source."""
    return MaskedIds(length, vocabulary) if kind == "synthetic" else MaskedSource(split, length)


def scenes(split: str, kind: Literal["synthetic", "digits"], side: int, classes: int = 10) -> Dataset[Sample]:
    """Images with boxes: noise with random boxes, or digits at random places."""
    return SyntheticScenes(side, classes) if kind == "synthetic" else DigitScenes(split, side)


class SyntheticSamples(Dataset[Sample]):
    """Drawn from each sample's index."""

    def __len__(self) -> int:
        return SYNTHETIC_SAMPLES


class SyntheticImages(SyntheticSamples):
    """Standard normal pixels (3, side, side)."""

    def __init__(self, side: int, classes: int) -> None:
        self._side = side
        self._classes = classes

    def __getitem__(self, index: int) -> Sample:
        drawn = torch.Generator().manual_seed(index)
        pixels = torch.randn(3, self._side, self._side, generator=drawn)
        return {"pixel_values": pixels, "labels": index % self._classes}


class Digits(Dataset[Sample]):
    """Every tenth digit is held out. Pixels (3, side, side), from -1 to 1."""

    def __init__(self, split: str, side: int) -> None:
        pixels, labels = _digits()
        chosen = _part(len(pixels), split)
        self._pixels = torch.nn.functional.interpolate(pixels[chosen], (side, side)).expand(-1, 3, -1, -1)
        self._labels = labels[chosen]

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Sample:
        return {"pixel_values": self._pixels[index], "labels": self._labels[index]}


@cache
def _digits() -> tuple[Tensor, Tensor]:
    """Pixels (n, 1, 8, 8) from -1 to 1, and labels (n,)."""
    from sklearn.datasets import load_digits

    loaded = load_digits()
    pixels = torch.from_numpy(loaded.images.astype(np.float32))[:, None] / 8 - 1
    return pixels, torch.from_numpy(loaded.target.astype(np.int64))


def _part(count: int, split: str) -> Tensor:
    held_out = torch.arange(count) % 10 == 0
    return torch.nonzero(held_out if split == "validation" else ~held_out).flatten()


class MaskedIds(SyntheticSamples):
    """Random ids (length,)."""

    def __init__(self, length: int, vocabulary: int) -> None:
        self._length = length
        self._vocabulary = vocabulary

    def __getitem__(self, index: int) -> Sample:
        drawn = torch.Generator().manual_seed(index)
        ids = torch.randint(self._vocabulary - 1, (self._length,), generator=drawn)
        return _masked(ids, self._vocabulary - 1, drawn)


class MaskedSource(Dataset[Sample]):
    """Bytes (length,) of the standard library's source, up to 4 MB of it."""

    def __init__(self, split: str, length: int) -> None:
        text = _standard_library()
        rows = text[: len(text) // length * length].reshape(-1, length)
        self._rows = rows[_part(len(rows), split).numpy()]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Sample:
        ids = torch.from_numpy(self._rows[index].astype(np.int64))
        return _masked(ids, MASK, None)  # other places in each epoch


@cache
def _standard_library() -> npt.NDArray[np.uint8]:
    text = b""
    for file in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += file.read_bytes()
        if len(text) >= _TEXT_BYTES:
            break
    return np.frombuffer(text[:_TEXT_BYTES], dtype=np.uint8)


def _masked(ids: Tensor, mask: int, drawn: torch.Generator | None) -> Sample:
    """drawn: None takes torch's own generator. At least one id is masked, or the mean loss would not be defined."""
    hidden = torch.rand(ids.shape, generator=drawn) < MASKED_SHARE
    hidden[0] |= not hidden.any()
    return {"input_ids": ids.masked_fill(hidden, mask), "labels": ids.masked_fill(~hidden, -100)}


class SyntheticScenes(SyntheticSamples):
    """Standard normal pixels (3, side, side), and 7 boxes, the mean of COCO."""

    BOXES = 7

    def __init__(self, side: int, classes: int) -> None:
        self._side = side
        self._classes = classes

    def __getitem__(self, index: int) -> Sample:
        drawn = torch.Generator().manual_seed(index)
        sizes = 0.05 + 0.4 * torch.rand(self.BOXES, 2, generator=drawn)
        centres = sizes / 2 + (1 - sizes) * torch.rand(self.BOXES, 2, generator=drawn)
        labels = torch.randint(self._classes, (self.BOXES,), generator=drawn)
        pixels = torch.randn(3, self._side, self._side, generator=drawn)
        return {"pixel_values": pixels, "labels": {"class_labels": labels, "boxes": torch.cat([centres, sizes], 1)}}


class DigitScenes(Dataset[Sample]):
    """One to four digits at random places, with their boxes. Pixels (3, side, side), from -1 to 1."""

    def __init__(self, split: str, side: int) -> None:
        pixels, labels = _digits()
        chosen = _part(len(pixels), split)
        self._pixels, self._labels, self._side = pixels[chosen, 0], labels[chosen], side

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> Sample:
        drawn = torch.Generator().manual_seed(index)
        size, cells = 16, self._side // 16  # in pixels; places that do not overlap
        count = int(torch.randint(1, 5, (), generator=drawn))
        scene, boxes, labels = torch.full((self._side, self._side), -1.0), [], []
        for number, cell in enumerate(torch.randperm(cells * cells, generator=drawn)[:count].tolist()):
            digit = (index + 37 * number) % len(self._labels)
            top, left = cell // cells * size, cell % cells * size
            scene[top : top + size, left : left + size] = (
                self._pixels[digit].repeat_interleave(2, 0).repeat_interleave(2, 1)
            )
            boxes.append([(left + size / 2) / self._side, (top + size / 2) / self._side, *[size / self._side] * 2])
            labels.append(int(self._labels[digit]))
        return {
            "pixel_values": scene.expand(3, -1, -1),
            "labels": {"class_labels": torch.tensor(labels), "boxes": torch.tensor(boxes)},
        }


def detection_batch(samples: list[Sample]) -> Sample:
    """Pixels (b, 3, side, side), and the labels of each image, which may have unequally many boxes."""
    pixels = torch.stack([sample["pixel_values"] for sample in samples])
    return {"pixel_values": pixels, "labels": [sample["labels"] for sample in samples]}
