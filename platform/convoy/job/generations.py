"""Forming a generation: one creates its object, the others find it."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from convoy.config.errors import ConfigError
from convoy.job.gang_tokens import token_object
from convoy.job.leases import lease
from convoy.job.lineage import (
    CommitRef,
    Generation,
    History,
    all_commits_lost,
    config_name,
    counted_commits,
    intact_tiers,
    newest_commit,
    read_generation,
    read_history,
)
from convoy.job.record import check_store_fit
from convoy.storage import ObjectMissing, Store, StoreUnavailable, open_store

_TRIES = 8
"""Of forming a generation while the commit it would go on from is pruned."""


class FormationError(RuntimeError):
    """The nodes of this formation do not come together, or it has ended already; the text is the reason."""


class GenerationLostError(RuntimeError):
    """Another formation created the generation first."""


class CommitsLostError(RuntimeError):
    """The job had checkpoints, and none is left: going on would silently start from the beginning."""


@dataclass(frozen=True)
class RestoreOrigin:
    """What a state was restored from."""

    parent: CommitRef | None
    """None: there was no commit."""
    newest: int
    """Number of the newest generation at that time; 0: there was none."""


def form_generation(
    store: Store,
    *,
    formation: str,
    nodes: int,
    world_size: int,
    config_hash: str,
    rendezvous: str,
    others: Sequence[Store] = (),
    origin: RestoreOrigin | None = None,
    control: str = "",
    token: str = "",
) -> Generation:
    """Create the job's next generation, on from the newest commit that counts on any tier.

    origin: what was restored already, to go on from that instead, whatever the generation before has committed since;
    one that was formed since remains, which is a GenerationLostError.
    store: the root. others: the further tiers, which get the generation too. control: where the agents
    of the other nodes reach node 0's. token: what they then prove that they know; it is kept until `remove_tokens`.
    Raises GenerationLostError, CommitsLostError, and StoreUnavailable if any tier is
    out of reach: it may hold the newest commit; ConfigError if one that does was left out, or a tier does not keep what
    commits stand on.
    """
    for _ in range(_TRIES):
        history = read_full_history(store, others)
        if all_commits_lost(history):
            raise CommitsLostError(f"{store.uri}: the job had checkpoints, and every one of them is damaged or gone")
        parent = newest_commit(history) if origin is None else _restored_parent(store, history, origin)
        with _lease_commit((store, *others), history, parent) as there:
            if there:
                with token_object(store, history.newest + 1, token) as token_name:
                    ours = Generation(
                        generation=history.newest + 1,
                        parent=parent,
                        formation=formation,
                        nodes=nodes,
                        world_size=world_size,
                        config_hash=config_hash,
                        created=time.time(),
                        rendezvous=rendezvous,
                        tiers=tuple(tier.uri for tier in others),
                        control=control,
                        token_name=token_name,
                    )
                    _create_generation(store, ours, others)
                    return ours
    raise GenerationLostError(f"{store.uri}: another run of the job continues to save and prune")


def _restored_parent(store: Store, history: History, origin: RestoreOrigin) -> CommitRef | None:
    """The parent of a generation that continues from what was restored."""
    if history.newest < origin.newest:
        raise StoreUnavailable(f"{store.uri} lacks generation {origin.newest} of the job: is it mounted?")
    if history.newest > origin.newest:
        formed = f"another run of the job formed generation {history.newest} since this one restored"
        raise GenerationLostError(f"{store.uri}: {formed}; restore again to continue from what that one saves")
    if origin.parent is not None and not intact_tiers(history, origin.parent):
        gone = f"the commit of step {origin.parent.step}, which was restored, is damaged or gone by now"
        raise CommitsLostError(f"{store.uri}: {gone}; restore again")
    return origin.parent


def read_full_history(store: Store, others: Sequence[Store]) -> History:
    """The history, from which a job may go on: no tier is left out that alone has the newest commit.

    store: the root. others: the further tiers. Raises ConfigError, StoreUnavailable.
    """
    history, tiers = read_history(store, others), (store, *others)
    newest = history.generations.get(history.newest)
    for uri in newest.tiers if newest else ():
        needed = None if uri in [tier.uri for tier in tiers] else _why_tier_needed(tiers, uri)
        if needed:
            saved = f"which the job's generation {history.newest} saved to"
            raise ConfigError(f"checkpoint.tiers: lacks {uri}, {saved}; keep it: {needed}")
    return history


def _why_tier_needed(tiers: Sequence[Store], uri: str) -> str | None:
    """Why the tier must not be left out; None: what is newest is on the others."""
    try:
        whole = read_history(tiers[0], (*tiers[1:], open_store(uri)))
    except StoreUnavailable as error:
        return f"it may have the newest commit, and is out of reach ({error})"
    newest = newest_commit(whole)
    if newest is None or min(intact_tiers(whole, newest)) < len(tiers):
        return None
    return f"it alone has the newest commit, step {newest.step}, until: convoy checkpoints copy {uri} {tiers[0].uri}"


@contextlib.contextmanager
def _lease_commit(tiers: Sequence[Store], history: History, ref: CommitRef | None) -> Iterator[bool]:
    """Whether the commit is still there, for as long as the block runs.

    What prunes for the generation before may be at it just now: it looks for leases, then for what was made under one.
    """
    with contextlib.ExitStack() as leases:
        if ref is None:
            yield True
            return
        holding = [tiers[place] for place in intact_tiers(history, ref)]
        for tier in holding:
            leases.enter_context(lease(tier, ref))
        yield any(ref.name in tier.sizes(ref.name) for tier in holding)


def await_generation(
    store: Store, formation: str, *, deadline_seconds: float, poll_seconds: float, sleep: Callable[[float], None]
) -> Generation:
    """The generation that node 0 of the same formation made.

    Raises FormationError, GenerationLostError if another formation has made a newer one since, TimeoutError.
    """
    waited, others = 0.0, set[str]()
    while waited < deadline_seconds:
        # First: of a gang that has ended already only this says why.
        refused = read_refusal(store, formation)
        if refused is not None:
            raise FormationError(refused)
        newest = _newest_formed(store, formation, others)
        if newest is not None:
            return newest
        sleep(poll_seconds)
        waited += poll_seconds
    raise TimeoutError(f"node 0 formed no generation of {formation} within {deadline_seconds:.0f} s")


def refuse_formation(store: Store, formation: str, reason: str) -> None:
    """Tell the other nodes of a formation that nothing will come of it, or more."""
    store.write(_refusal_name(formation), reason.encode())


def read_refusal(store: Store, formation: str) -> str | None:
    """Why nothing comes of a formation; None: nobody said so."""
    try:
        return store.read(_refusal_name(formation)).decode()
    except ObjectMissing:
        return None


def _refusal_name(formation: str) -> str:
    return f"refused/{formation}.txt"


def rewind(store: Store, to_step: int, others: Sequence[Store] = ()) -> CommitRef:
    """Make the newest commit at or below `to_step` the one the job continues from; later ones no longer count.

    store: the root. others: the further tiers. Raises ConfigError if no commit that counts is that old or a tier does
    not keep what commits stand on, or as `read_full_history`.
    """
    history = read_full_history(store, others)
    counted = counted_commits(history)
    usable = [c for c in counted if c.step <= to_step]
    if not usable:
        have = ", ".join(str(c.step) for c in counted) or "none"
        raise ConfigError(f"--to {to_step}: must be at least the step of a commit; commits: {have}")
    target = usable[-1]
    rewound = Generation(
        generation=history.newest + 1,
        parent=target,
        formation="rewind",
        nodes=0,
        world_size=0,
        config_hash="",
        created=time.time(),
        tiers=tuple(tier.uri for tier in others),
    )
    with _lease_commit((store, *others), history, target) as there:
        if not there:
            raise ConfigError(f"--to {to_step}: {target.name} was pruned just now; try again")
        _create_generation(store, rewound, others)
    return target


def _create_generation(store: Store, generation: Generation, others: Sequence[Store]) -> None:
    data = generation.model_dump_json(indent=2).encode()
    check_store_fit(store)
    for tier in others:
        with contextlib.suppress(StoreUnavailable):  # such as a full one, from which the job may well go on
            check_store_fit(tier)
    if not store.create(generation.name, data):
        raise GenerationLostError(f"generation {generation.generation} of {store.uri} was formed by another run")
    for tier in others:
        # Copying does it again. With it a tier shows by itself which of its commits count, should the root be lost.
        with contextlib.suppress(StoreUnavailable):
            with contextlib.suppress(ObjectMissing):
                ran_with = config_name(generation.config_hash)
                tier.create(ran_with, store.read(ran_with))
            tier.create(generation.name, data)


def _newest_formed(store: Store, formation: str, others: set[str]) -> Generation | None:
    """The newest generation that this formation made. Raises GenerationLostError if it is not the job's newest.

    others: names known to be other formations', which grow with each call: a generation's object never changes.
    """
    newer: str | None = None
    for name in sorted(store.sizes("generations/").keys() - others, reverse=True):
        generation = read_generation(store, name)
        if generation.formation == formation:
            if newer is not None:
                raise GenerationLostError(f"{store.uri}/{newer}: another run of the job formed a newer generation")
            return generation
        newer = newer or name
        others.add(name)
    return None
