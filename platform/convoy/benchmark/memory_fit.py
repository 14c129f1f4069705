"""Which cases have room next to each other in a rank's memory. Imports no torch.

All cases of a gang stay in memory while they take turns. What has no room by itself is refused, with what it would
need; what has none next to the others gets a gang of its own with the case that it is compared with.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from convoy.benchmark.groups import Group, Ranks, RefusedCase, VariantSpec
from convoy.benchmark.memory_estimate import NOTHING, CaseMemory, bytes_in_turns, estimate_memory, gang_bytes
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig

SHARE_OF_STATES = 0.6
"""Share of each memory of a rank for the states of a gang's cases: activations and logits have the rest."""

GIB = 2**30

Sizes = Mapping[str, CaseMemory]
"""Memory of the cases of a group, by name."""


class NoRoomError(ConfigError):
    """A model no case of which has room on its ranks."""


class MemoryShortage(NamedTuple):
    """Cases that have no room."""

    needed: int
    """Bytes of the memory that lacks room."""
    reason: str
    """From `needs` on: a predicate of the case."""


def gangs_that_fit(group: Group, ranks: Ranks) -> list[Group]:
    """The group as gangs that have room on their ranks. Raises NoRoomError where none of its cases has."""
    if ranks.memory_bytes is None or group.recovery is not None or group.network is not None:
        return [group]  # drills train a small model of their own, and the network suite trains none
    sizes = {spec.name: estimate_memory(spec, group.run, ranks) for spec in group.variants}
    alone = {name: _memory_shortage([name], sizes, ranks) for name in sizes}
    large = {name: lack.reason for name, lack in alone.items() if lack}
    left = [spec for spec in group.variants if spec.name not in large]
    if all(spec.needs_gpu for spec in left):
        least = min((lack for lack in alone.values() if lack), key=lambda lack: lack.needed)
        raise NoRoomError(f"model = {group.run.model.name}: any case of {group.name} {least.reason}")
    baseline = group.baseline if group.baseline not in large else left[0].name
    for spec in left:
        compared = [name for name in (baseline, spec.baseline) if name is not None and name not in (*large, spec.name)]
        lack = _memory_shortage([*dict.fromkeys(compared), spec.name], sizes, ranks) if spec.name != baseline else None
        if lack:
            large[spec.name] = lack.reason
    smaller = group.model_copy(
        update={
            "baseline": baseline,
            "variants": tuple(
                spec.model_copy(update={"baseline": None}) if spec.baseline in large else spec
                for spec in left
                if spec.name not in large
            ),
            "refused": (
                *group.refused,
                *(RefusedCase(spec=s, reason=large[s.name]) for s in group.variants if s.name in large),
            ),
        }
    )
    return [smaller] if group.whole else list(_split_into_gangs(smaller, sizes, ranks))


def has_room_next_to(baseline: VariantSpec, spec: VariantSpec, run: RunConfig, ranks: Ranks) -> bool:
    """Whether `gangs_that_fit` keeps the case: it has room next to the one that it is compared with, or by itself where
    that one has none. run: of their group."""
    sizes = {each.name: estimate_memory(each, run, ranks) for each in (baseline, spec)}
    compared = [] if _memory_shortage([baseline.name], sizes, ranks) else [baseline.name]
    return _memory_shortage([*compared, spec.name], sizes, ranks) is None


def _split_into_gangs(group: Group, sizes: Sizes, ranks: Ranks) -> Iterator[Group]:
    """As few as have room, in the order of the cases, each with what its cases are compared with; at least one that is
    compared is in each."""
    cut: list[set[str]] = []
    for spec in group.variants:
        if spec.name == group.baseline or any(spec.name in names for names in cut):
            continue
        wanted = {spec.name} | {name for name in (group.baseline, spec.baseline) if name is not None}
        if cut and _have_room(cut[-1] | wanted, sizes, ranks):
            cut[-1] |= wanted
        else:
            cut.append(wanted)
    if len(cut) < 2:
        yield group
        return
    for number, names in enumerate(cut, 1):
        part = {
            "name": f"{group.name}-{number}",
            "variants": tuple(spec for spec in group.variants if spec.name in names),
            "refused": group.refused if number == 1 else (),
        }
        yield group.model_copy(update=part)


def _have_room(names: Iterable[str], sizes: Sizes, ranks: Ranks) -> bool:
    """Whether the cases of a gang leave room for the rest of their steps."""
    cases = [*names]
    states = [sizes.get(name, NOTHING) for name in cases]
    return states_fit(states, ranks) and _memory_shortage(cases, sizes, ranks) is None


def states_fit(cases: Iterable[CaseMemory], ranks: Ranks) -> bool:
    """Whether those of cases that take turns keep to their share of the device's memory, and of the host's, where they
    are offloaded."""
    return not states_shortage(cases, ranks)


def states_shortage(cases: Iterable[CaseMemory], ranks: Ranks) -> str:
    """What those of cases that take turns need beyond their share of a memory, from `needs` on; empty: they have
    room."""
    each = list(cases)
    for memory, (room, of) in enumerate(((ranks.memory_bytes, ""), (ranks.host_bytes, " of host memory"))):
        needed = bytes_in_turns(case[memory] for case in each)
        if room is not None and needed > room * SHARE_OF_STATES:
            share = f"{SHARE_OF_STATES:.0%}".replace("%", " %")
            return (
                f"needs, with the cases compared with it, at least {needed / GIB:,.1f} GiB{of} on a rank for weights, "
                f"gradients and moments, which have {share} of {room / GIB:,.1f} GiB"
            )
    return ""


def _memory_shortage(names: Sequence[str], sizes: Sizes, ranks: Ranks) -> MemoryShortage | None:
    """What the last of the cases needs on top of the ones before it and has no room for; None: they have room."""
    others = names[:-1]
    together_with = f", next to {' and '.join(others)}," if others else ""
    for memory, (room, of) in enumerate(((ranks.memory_bytes, ""), (ranks.host_bytes, " of host memory"))):
        cases = [sizes.get(name, NOTHING)[memory] for name in names]
        needed = gang_bytes(cases)
        if room is not None and needed > room:
            training = needed == bytes_in_turns(cases)
            when = "for weights, gradients and moments" if training else "while it is built"
            least = f"needs{together_with} at least {needed / GIB:,.1f} GiB{of} on a rank"
            return MemoryShortage(needed, f"{least} {when}, which has {room / GIB:,.1f} GiB")
    return None
