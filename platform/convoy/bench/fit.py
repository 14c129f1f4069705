"""Which cases have room beside each other in a rank's memory. Imports no torch.

All cases of a gang stay in memory while they take turns. What has no room by itself is refused, with what it would
need; what has none beside the others gets a gang of its own with the case that it is compared with.
"""

from collections.abc import Iterator

from convoy.bench.groups import Group, Ranks, Refused, VariantSpec
from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig
from convoy.config.run import RunConfig
from convoy.model.counts import parameter_count

STATE_BYTES = 16
"""Per parameter that trains: fp32 weight, gradient, and the two moments of AdamW."""

_WHOLE_BYTES = {"DeepSpeed ZeRO-1": 8, "DeepSpeed ZeRO-2": 4}
"""Of these, what every rank has: weights and gradients, or weights."""

SHARE_OF_STATES = 0.5
"""Of a rank's memory, for the states of all cases of a gang: activations, and copies of weights, have the rest."""

GIB = 2**30


def state_bytes(spec: VariantSpec, run: RunConfig, ranks: Ranks) -> int | None:
    """What a case's weights, gradients and moments take on the rank that has most of them, on the device that computes;
    None: a custom model's size is not known. Activations come on top."""
    if isinstance(run.model, CustomModelConfig):
        return None
    together = spec.ranks or ranks.all
    parallel = spec.config(run).parallel
    if parallel.cpu_offload:
        return 0
    sharing = 1 if spec.kind == "baseline" else parallel.sharing(together, min(together, ranks.per_node))
    whole = _WHOLE_BYTES.get(spec.kind, 0)
    return parameter_count(run.model) * (whole * sharing + STATE_BYTES - whole) // sharing


def fitted(group: Group, ranks: Ranks) -> list[Group]:
    """The group as gangs that have room on their ranks. Raises ConfigError where none of its cases has."""
    room = ranks.memory_bytes
    if room is None or group.recovery is not None:  # drills train a small model of their own
        return [group]
    sizes = {spec.name: state_bytes(spec, group.run, ranks) or 0 for spec in group.variants}
    large = {name: _too_large(size, room) for name, size in sizes.items() if size > room}
    left = [spec for spec in group.variants if spec.name not in large]
    if not any(spec.needs is None for spec in left):
        smallest = min(sizes[spec.name] for spec in group.variants if spec.name in large)
        raise ConfigError(f"model = {group.run.model.name}: any case of {group.name} {_too_large(smallest, room)}")
    baseline = group.baseline if group.baseline not in large else left[0].name
    for spec in left:
        reference = baseline if spec.baseline in (None, *large) else spec.baseline
        if reference is not None and spec.name != baseline and sizes[spec.name] + sizes.get(reference, 0) > room:
            large[spec.name] = _too_large(sizes[spec.name] + sizes[reference], room, f", with {reference} beside it,")
    kept = group.model_copy(
        update={
            "baseline": baseline,
            "variants": tuple(
                spec.model_copy(update={"baseline": None}) if spec.baseline in large else spec
                for spec in left
                if spec.name not in large
            ),
            "refused": tuple(Refused(spec=s, reason=large[s.name]) for s in group.variants if s.name in large),
        }
    )
    return [kept] if group.whole else list(_gangs(kept, sizes, room * SHARE_OF_STATES))


def _gangs(group: Group, sizes: dict[str, int], room: float) -> Iterator[Group]:
    """As few as have room, in the order of the cases, each with what its cases are compared with; at least one that is
    compared is in each."""
    cut: list[set[str]] = []
    for spec in group.variants:
        if spec.name == group.baseline or any(spec.name in names for names in cut):
            continue
        wanted = {spec.name} | {name for name in (group.baseline, spec.baseline) if name is not None}
        if cut and sum(sizes.get(name, 0) for name in cut[-1] | wanted) <= room:
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


def _too_large(size: int, room: int, beside: str = "") -> str:
    return (
        f"needs{beside} at least {size / GIB:,.1f} GiB on a rank for weights, gradients and moments, which has "
        f"{room / GIB:,.1f} GiB"
    )
