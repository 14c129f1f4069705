"""Forming a generation: one creates its object, the others find it."""

import contextlib
import time
from collections.abc import Callable

from convoy.config.errors import ConfigError
from convoy.job.lineage import CommitRef, Generation, History, generation_name, lineage, newest_commit, read_history
from convoy.storage import ObjectMissing, Store


class FormationRefusedError(RuntimeError):
    """Node 0 of this formation will form no generation; the text is its reason."""


class GenerationLostError(RuntimeError):
    """Another formation created the generation first."""


def form_generation(
    store: Store, *, formation: str, nodes: int, world_size: int, config_hash: str, rendezvous: str
) -> Generation:
    """Create the job's next generation, on from the newest commit that counts. Raises GenerationLostError."""
    history = read_history(store)
    ours = Generation(
        generation=history.newest + 1,
        parent=newest_commit(history),
        formation=formation,
        nodes=nodes,
        world_size=world_size,
        config_hash=config_hash,
        created=time.time(),
        rendezvous=rendezvous,
    )
    _create(store, ours)
    return ours


def await_generation(
    store: Store, formation: str, *, deadline_seconds: float, poll_seconds: float, sleep: Callable[[float], None]
) -> Generation:
    """The generation that node 0 of the same formation made.

    Raises FormationRefusedError, GenerationLostError if another formation has made a newer one since, TimeoutError.
    """
    waited, others = 0.0, set[str]()
    while waited < deadline_seconds:
        found = _newest_of(store, formation, others)
        if found is not None:
            return found
        with contextlib.suppress(ObjectMissing):
            raise FormationRefusedError(store.read(_refusal(formation)).decode())
        sleep(poll_seconds)
        waited += poll_seconds
    raise TimeoutError(f"node 0 formed no generation of {formation} within {deadline_seconds:.0f} s")


def refuse_formation(store: Store, formation: str, reason: str) -> None:
    """Tell the other nodes of a formation that its generation will not come. No harm if it is there already."""
    store.write(_refusal(formation), reason.encode())


def _refusal(formation: str) -> str:
    return f"refused/{formation}.txt"


def rewind(store: Store, to_step: int) -> CommitRef:
    """Make the newest commit at or below `to_step` the one the job goes on from; later ones count no more.

    Raises ConfigError if no commit that counts is that old.
    """
    history = read_history(store)
    counted = lineage(history)
    usable = [c for c in counted if c.step <= to_step]
    if not usable:
        have = ", ".join(str(c.step) for c in counted) or "none"
        raise ConfigError(f"--to {to_step}: must be at least the step of a commit; commits: {have}")
    target = usable[-1]
    _create(store, _rewound(history, target))
    return target


def _rewound(history: History, target: CommitRef) -> Generation:
    return Generation(
        generation=history.newest + 1,
        parent=target,
        formation="rewind",
        nodes=0,
        world_size=0,
        config_hash="",
        created=time.time(),
    )


def _create(store: Store, generation: Generation) -> None:
    if not store.create(generation.name, generation.model_dump_json(indent=2).encode()):
        raise GenerationLostError(f"generation {generation.generation} of {store.uri} was formed by another run")


def _newest_of(store: Store, formation: str, others: set[str]) -> Generation | None:
    """The newest generation that this formation made. Raises GenerationLostError if it is not the job's newest.

    others: names known to be other formations', which grow with each call: a generation's object never changes.
    """
    newer: str | None = None
    for name in sorted(store.sizes("generations/").keys() - others, reverse=True):
        found = Generation.model_validate_json(store.read(name))
        if found.formation == formation:
            if newer is not None:
                raise GenerationLostError(f"{store.uri}/{newer}: another run of the job formed a newer generation")
            return found
        newer = newer or name
        others.add(name)
    return None


__all__ = [
    "FormationRefusedError",
    "GenerationLostError",
    "await_generation",
    "form_generation",
    "generation_name",
    "refuse_formation",
    "rewind",
]
