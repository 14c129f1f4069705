"""What every variant of a group provides: steps, their losses and tokens, and the tensors that a rank holds."""

from collections.abc import Mapping
from typing import Any

from torch.distributed.tensor import DTensor

from convoy.training.engines.engine import Held


class Variant:
    """A training that takes turns with others. All ranks make the same calls in the same order.

    This class itself is the variant of a rank that has no part in a training: it does nothing, and the rank waits for
    the others at the end of each block.
    """

    parameters: int = 0
    """Parameters of the whole model."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.losses: list[float] = []
        """Losses of all steps so far."""
        self._tokens = 0
        self.values: dict[str, float] = {}
        """Further figures that it measures itself, by the names of `Case.values`."""

    def step(self) -> None:
        """One optimizer step, enqueued at least: the device is waited for around a block, not in it."""

    def _record_step(self, loss: float, tokens: int) -> None:
        """To be called at the end of each step. tokens: of all ranks that train together."""
        self.losses.append(loss)
        self._tokens += tokens

    @property
    def tokens_per_step(self) -> int:
        """Targets that count, of all ranks that train together: the mean over the steps so far."""
        return round(self._tokens / len(self.losses)) if self.losses else 0

    def example(self) -> tuple[Any, int] | None:
        """As `TrainingData.example`; also after the variant is closed."""
        return None

    def parts(self) -> Mapping[str, float]:
        """Seconds of the last step by part, or of a further step made for this, if the variant measures them; may wait
        for the device. All ranks call it after each block."""
        return {}

    def held(self) -> Held:
        """Everything of any size that this rank keeps from one step to the next."""
        return {}

    @property
    def held_bytes(self) -> int:
        """Bytes of this rank's weights and optimizer state: shared memory counts once, and padding counts too."""
        held = self.held()
        tensors = (*held.get("parameters", ()), *held.get("optimizer", ()))
        local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
        storages = (tensor.untyped_storage() for tensor in local)
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages if storage.nbytes()}.values())

    def close(self) -> None:
        """Release what is open."""
