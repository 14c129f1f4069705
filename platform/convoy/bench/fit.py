"""Which cases have room beside each other in a rank's memory. Imports no torch.

All cases of a gang stay in memory while they take turns. What has no room by itself is refused, with what it would
need; what has none beside the others gets a gang of its own with the case that it is compared with.
"""

from collections.abc import Iterator, Sequence

from convoy.bench.groups import Group, Ranks, Refused, VariantSpec
from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig
from convoy.config.run import RunConfig
from convoy.model.counts import parameter_count

STATE_BYTES = 16
"""Per parameter that trains: fp32 weight, gradient, and the two moments of AdamW."""

SHARE_OF_STATES = 0.5
"""Of a rank's memory, for the states of all cases of a gang: activations, and copies of weights, have the rest."""

GIB = 2**30


def state_bytes(spec: VariantSpec, run: RunConfig, ranks: Ranks) -> int | None:
    """What a case's weights, gradients and moments take on the rank that has most of them; None: a custom model's size
    is not known. Activations come on top."""
    if isinstance(run.model, CustomModelConfig):
        return None
    together = spec.ranks or ranks.all
    sharing = spec.config(run).parallel.sharing(together, min(together, ranks.per_node))
    return parameter_count(run.model) * STATE_BYTES // (1 if spec.kind == "baseline" else sharing)


def fitted(group: Group, ranks: Ranks) -> list[Group]:
    """The group as gangs that have room on their ranks. Raises ConfigError where none of its cases has."""
    room = ranks.memory_bytes
    if room is None:
        return [group]
    sizes = {spec.name: state_bytes(spec, group.run, ranks) for spec in group.variants}
    refused = tuple(
        Refused(spec=spec, reason=_too_large(size, room))
        for spec in group.variants
        if (size := sizes[spec.name]) is not None and size > room
    )
    without = {each.spec.name for each in refused}
    left = [spec for spec in group.variants if spec.name not in without]
    if not left:
        smallest = min(size for size in sizes.values() if size is not None)
        raise ConfigError(f"model = {group.run.model.name}: any case of {group.name} {_too_large(smallest, room)}")
    baseline = group.baseline if group.baseline not in without else left[0].name
    kept = group.model_copy(update={"variants": tuple(left), "baseline": baseline, "refused": refused})
    return [kept] if group.whole else list(_gangs(kept, sizes, room * SHARE_OF_STATES))


def _gangs(group: Group, sizes: dict[str, int | None], room: float) -> Iterator[Group]:
    """As few as have room, in the order of the cases, each with the baseline; one other at least is in each."""
    first = [spec for spec in group.variants if spec.name == group.baseline]
    others = [spec for spec in group.variants if spec.name != group.baseline]
    held = sum(sizes[spec.name] or 0 for spec in first)
    cut: list[list[VariantSpec]] = [[]]
    for spec in others:
        taken = held + sum(sizes[each.name] or 0 for each in [*cut[-1], spec])
        if cut[-1] and taken > room:
            cut.append([])
        cut[-1].append(spec)
    if len(cut) == 1:
        yield group
        return
    for number, part in enumerate(cut, 1):
        name = f"{group.name}-{number}"
        yield group.model_copy(
            update={
                "name": name,
                "variants": _in_order(group.variants, [*first, *part]),
                "refused": group.refused if number == 1 else (),
            }
        )


def _in_order(all_of: Sequence[VariantSpec], some: Sequence[VariantSpec]) -> tuple[VariantSpec, ...]:
    return tuple(spec for spec in all_of if spec in some)


def _too_large(size: int, room: int) -> str:
    return (
        f"needs at least {size / GIB:,.1f} GiB on a rank for weights, gradients and moments, which has "
        f"{room / GIB:,.1f} GiB"
    )
