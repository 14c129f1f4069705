"""Which events lie on the branch that the newest generation resumed from."""

import math
from collections.abc import Iterable, Mapping, Sequence

from convoy.job.events.registry import Event, GenerationStarted, Restored, ScriptResumed

Branch = Mapping[int, float]
"""Last step that counts, for each generation of the lineage."""


def by_generation(events: Iterable[Event]) -> dict[int, list[Event]]:
    """The events of each generation, in order."""
    groups: dict[int, list[Event]] = {}
    for event in events:
        groups.setdefault(event.generation, []).append(event)
    return dict(sorted(groups.items()))


def generation_starts(events: Iterable[Event]) -> dict[int, GenerationStarted]:
    """The start of each generation in order: node 0's, or another node's while node 0's is missing.

    Its parent is the commit that was restored: an older one than it was formed to resume from, where that was damaged.
    The parent of a script's generation is the step it resumed from, which the script saved itself.
    """
    first: dict[int, GenerationStarted] = {}
    restored: dict[int, tuple[int, int]] = {}
    for event in events:
        if isinstance(event, GenerationStarted) and (event.generation not in first or event.node == 0):
            first[event.generation] = event
        elif isinstance(event, Restored):
            restored[event.generation] = event.from_generation, event.step
        elif isinstance(event, ScriptResumed):
            restored[event.generation] = event.generation - 1, event.step
    return {generation: _with_parent(start, restored.get(generation)) for generation, start in sorted(first.items())}


def _with_parent(start: GenerationStarted, restored: tuple[int, int] | None) -> GenerationStarted:
    if restored is None:
        return start
    generation, step = restored
    return start.model_copy(update={"parent_generation": generation, "parent_step": step})


def lineage(events: Sequence[Event]) -> Branch:
    """The newest generation without limit, and its ancestors up to the step where the child branched off."""
    if not events:
        return {}
    started = generation_starts(events)
    generation: int | None = max(event.generation for event in events)
    limit = float("inf")
    branch: dict[int, float] = {}
    while generation is not None and generation not in branch:
        branch[generation] = limit
        start = started.get(generation)
        if start is None or start.parent_step is None:
            break
        generation, limit = start.parent_generation, min(limit, start.parent_step)
    return branch


def events_on_branch(events: Iterable[Event], branch: Branch) -> list[Event]:
    """Events of the branch: those without a step, and those at or below their generation's last step."""
    return [e for e in events if getattr(e, "step", 0) <= branch.get(e.generation, -math.inf)]
