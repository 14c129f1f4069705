"""The largest model that each way to spread it has room for, beside what is measured of it. Imports no torch."""

from convoy.benchmark.groups import Group, Ranks, VariantSpec
from convoy.benchmark.memory_estimate import largest_model
from convoy.benchmark.results.values import (
    LARGEST_MODEL_LAYERS,
    LARGEST_MODEL_PARAMETERS,
    RANK_HOST_BYTES,
    RANK_MEMORY_BYTES,
)
from convoy.model.counts import parameter_count

WHAT = "largest model"
"""Name of it where it is not told."""


def with_largest_models(group: Group, ranks: Ranks) -> Group:
    """The group whose cases tell of it, with the memory that it is reckoned for, or why they do not."""
    variants = tuple(_told(spec, group, ranks) for spec in group.variants)
    return group.model_copy(update={"variants": variants})


def _told(spec: VariantSpec, group: Group, ranks: Ranks) -> VariantSpec:
    found = largest_model(spec, group.run, ranks)
    if isinstance(found, str):
        return spec.model_copy(update={"not_measured": {**spec.not_measured, WHAT: found}})
    assert ranks.memory_bytes is not None
    told = {
        LARGEST_MODEL_PARAMETERS: float(parameter_count(found)),
        LARGEST_MODEL_LAYERS: float(found.n_layers),
        RANK_MEMORY_BYTES: float(ranks.memory_bytes),
    }
    if ranks.host_bytes is not None:
        told[RANK_HOST_BYTES] = float(ranks.host_bytes)
    return spec.model_copy(update={"values": {**spec.values, **told}})
