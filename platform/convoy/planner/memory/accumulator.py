"""Bytes of a rank that come and go during a step, and what they were when they were most."""

from collections.abc import Callable
from typing import Literal, get_args

Part = Literal["parameters", "optimizer", "gradients", "gathered", "reduced", "activations", "logits"]
"""parameters: a rank's own shards; optimizer: their moments, and what an update needs on top; gradients: shards of
them, and those of a whole unit that are not reduced yet, or DDP's buckets and what is not in them yet; gathered:
weights of whole units, in use, ahead, and on their way, or autocast's copies; reduced: buffers of reductions; logits:
what the head and its loss take."""

PARTS: tuple[Part, ...] = get_args(Part)


class MemoryAccumulator:
    """What is there now, by what it is for, and what there was at the peak."""

    def __init__(self) -> None:
        self._now: dict[Part, int] = dict.fromkeys(PARTS, 0)
        self._sum = 0
        self.most = 0
        """Bytes at the peak; `peak` has what they are for."""
        self.peak: dict[Part, int] = dict(self._now)

    @property
    def current_bytes(self) -> dict[Part, int]:
        return self._now.copy()

    def allocate(self, part: Part, size: int) -> None:
        """Add bytes. To model an overlap, allocate the new before freeing the old."""
        self._now[part] += size
        self._sum += size
        if self._sum > self.most:
            self.most, self.peak = self._sum, self._now.copy()

    def free(self, part: Part, size: int) -> None:
        self._now[part] -= size
        self._sum -= size

    def repeat(self, times: int, body: Callable[[], None]) -> None:
        """`body` so many times, of which all but the first and the last are alike: what is between the first two and
        the last two only adds up evenly, and has no peak of its own."""
        before = self._now.copy()
        for done in range(min(times, 4)):
            if done == 2 and times > 4:
                self._extrapolate(times - 4, before)
            before = self._now.copy()
            body()

    def _extrapolate(self, times: int, before: dict[Part, int]) -> None:
        """So many times what has come since."""
        for part in PARTS:
            more = times * (self._now[part] - before[part])
            self._now[part] += more
            self._sum += more


class LiveTensors:
    """Named activations of one block, in an accumulator."""

    def __init__(self, accumulator: MemoryAccumulator, sizes: dict[str, int]) -> None:
        """sizes: those that the accumulator has already."""
        self._accumulator, self._sizes = accumulator, dict(sizes)

    def allocate(self, name: str, size: int) -> None:
        """Does nothing if it is there."""
        if name not in self._sizes:
            self._sizes[name] = size
            self._accumulator.allocate("activations", size)

    def drop(self, *names: str) -> None:
        for name in names:
            self._accumulator.free("activations", self._sizes.pop(name, 0))

    def drop_all_but(self, names: frozenset[str]) -> dict[str, int]:
        """Drop all others, and return what is left."""
        self.drop(*(name for name in list(self._sizes) if name not in names))
        return dict(self._sizes)
