"""What a group needs of memory at least, and whether it is there. Imports no torch."""

from convoy.bench.groups import Group, VariantSpec
from convoy.config.errors import ConfigError
from convoy.config.model import CustomModelConfig
from convoy.config.run import RunConfig
from convoy.model.counts import parameter_count

STATE_BYTES = 16
"""Per parameter that trains: fp32 weight, gradient, and the two moments of AdamW."""

GIB = 2**30


def state_bytes(spec: VariantSpec, run: RunConfig, ranks: int) -> int | None:
    """What a variant's weights, gradients and moments take over all ranks together, on the devices that compute;
    None: a custom model's size is not known. Activations come on top."""
    if isinstance(run.model, CustomModelConfig):
        return None
    together = spec.ranks or ranks
    parallel = spec.config(run).parallel
    if parallel.cpu_offload:
        return 0
    jobs = ranks // together if spec.at_once else 1
    copies = jobs * (together if spec.kind == "baseline" else max(1, together // parallel.sharing(together, together)))
    return copies * parameter_count(run.model) * STATE_BYTES


def check_memory(group: Group, ranks: int, memory_bytes: int | None) -> None:
    """Raise ConfigError if the variants of a group, which all stay in memory while they take turns, cannot fit.

    memory_bytes: of all devices of the gang together; None: not known, and nothing is refused.
    """
    needed = {spec.name: state_bytes(spec, group.run, ranks) for spec in group.variants}
    known = [size for size in needed.values() if size is not None]
    if memory_bytes is None or sum(known) <= memory_bytes:
        return
    one = max(known)
    who, size = f"a case of {group.name} needs", one
    if one <= memory_bytes:
        who, size = f"the {len(known)} cases of {group.name} need", sum(known)
    raise ConfigError(
        f"model = {group.run.model.name}: {who} at least {size / GIB:,.1f} GiB for weights, gradients and moments, "
        f"and there are {memory_bytes / GIB:,.1f} GiB; take a smaller model, more nodes, or fewer cases"
    )
