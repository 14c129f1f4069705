"""What a tracker is sent of the event log: numbers and texts of the living branch. Pure."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from convoy.job.events.registry import (
    CheckpointSaved,
    Evaluated,
    Event,
    GenerationStarted,
    MemoryPeak,
    Restored,
    SampleText,
    ScriptResumed,
    StepDone,
)
from convoy.report.analysis.lineage import Branch, events_on_branch, generation_starts, lineage


class Point(NamedTuple):
    """One number of one step."""

    name: str
    value: float
    step: int
    t: float
    """Unix time."""


class Text(NamedTuple):
    """One text that the model generated."""

    name: str
    """`samples/<i>`: which of its step's texts it is."""
    text: str
    step: int
    t: float
    """Unix time."""


LastSteps = dict[str, int]
"""By name of a point or text: the last step that a tracker has of it."""


class LivingBranch:
    """Keeps of a growing log what lies on the branch that its newest generation resumed from."""

    def __init__(self) -> None:
        self._shape: list[Event] = []
        """The few events that decide which generation resumed from which."""
        self._waiting: list[Event] = []
        """Of generations whose start is not in the log yet: each writer's file arrives at its own time."""
        self._branch: Branch = {}

    def add(self, events: Sequence[Event], *, final: bool = False) -> list[Event]:
        """Those of the new events that lie on the branch as it is now, by time.

        Events wait until the log says from where their generation resumed. final: they no longer do.
        """
        shaping = [e for e in events if isinstance(e, GenerationStarted | Restored | ScriptResumed)]
        self._shape += shaping
        started = {e.generation for e in self._shape if isinstance(e, GenerationStarted) and e.node == 0}
        ready = sorted([*self._waiting, *events], key=lambda e: e.t)
        if final:
            self._waiting = []
        else:
            self._waiting = [e for e in ready if e.generation not in started]
            ready = [e for e in ready if e.generation in started]
        if shaping or final:
            self._branch = lineage([*self._shape, *ready])
        return events_on_branch(ready, self._branch)

    @property
    def resumptions(self) -> dict[int, int]:
        """The step that each generation of the branch resumed from, if it resumed at all."""
        starts = generation_starts(self._shape)
        steps = {number: start.parent_step for number, start in starts.items() if number in self._branch}
        return {number: step for number, step in steps.items() if step is not None}


def points_of(events: Iterable[Event]) -> Iterator[Point]:
    """Every finite number that was measured, in the order of the events."""
    for event in events:
        for name, value in _values_by_name(event).items():
            if math.isfinite(value):
                yield Point(name, value, event.step, event.t)  # type: ignore[attr-defined]  # all such kinds have one


def texts_of(events: Iterable[Event]) -> Iterator[Text]:
    """The texts, numbered within their step."""
    counts: dict[tuple[int, int], int] = {}
    for event in events:
        if isinstance(event, SampleText):
            index = counts[event.generation, event.step] = counts.get((event.generation, event.step), -1) + 1
            yield Text(f"samples/{index}", event.prompt + event.text, event.step, event.t)


def take_unsent(items: Iterable[Any], last_steps: LastSteps) -> list[Any]:
    """The points or texts of steps after the last ones, each step of a name once; `last_steps` then includes them.

    A generation that resumed repeats steps: their first value stays.
    """
    unsent = []
    for item in items:
        if item.step > last_steps.get(item.name, -1):
            last_steps[item.name] = item.step
            unsent.append(item)
    return unsent


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings under dotted names."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _values_by_name(event: Event) -> dict[str, float]:
    match event:
        case StepDone():
            values = {
                "train/loss": event.loss,
                "train/grad_norm": event.grad_norm,
                "train/learning_rate": event.lr,
                "train/step_seconds": event.seconds,
            }
            rate = {"train/tokens_per_second": event.tokens / event.seconds} if event.seconds > 0 else {}
            return values | rate
        case Evaluated():
            bits = {} if event.bits_per_byte is None else {"validation/bits_per_byte": event.bits_per_byte}
            return {"validation/loss": event.loss, **bits}
        case MemoryPeak(rank=rank) if rank is not None:
            return {f"memory/peak_bytes_rank{rank}": float(event.bytes)}
        case CheckpointSaved():
            return {
                "checkpoint/bytes": float(event.bytes),
                "checkpoint/seconds": event.seconds,
                "checkpoint/committed_seconds": event.committed_seconds,
            }
    return {}
