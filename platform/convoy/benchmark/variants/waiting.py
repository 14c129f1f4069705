"""The turn of a variant that this rank has no part in."""

from collections.abc import Mapping


class Waiting:
    """Does nothing: the rank waits for those that work, at the end of the block."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.losses: list[float] = []
        self.parameters = 0
        self.held_bytes = 0
        self.tokens_per_step = 0

    def step(self) -> None:
        """Others make it."""

    def parts(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        """Nothing is open."""
