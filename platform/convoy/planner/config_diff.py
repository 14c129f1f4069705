"""The keys that make one configuration of another."""

from pydantic import BaseModel

from convoy.config.run import RunConfig
from convoy.planner.plan_schema import Keys

PLACE = "cluster.backend"
"""Of a search from a configuration of this host: whoever starts it there chooses his own, and a plan asks for none."""


def differing(base: RunConfig, wanted: RunConfig) -> Keys:
    """What `--set` lays on `base` so that it is planned as `wanted` is, in the order of the configuration. A model that
    is another one must be a preset, and is one by its name."""
    model: Keys = {} if wanted.model == base.model else {"model": wanted.model.name}
    same = base.model_copy(update={"model": wanted.model})
    return {**model, **{key: value for key, value in _leaves(same, wanted).items() if key != PLACE}}


def _leaves(base: BaseModel | None, wanted: BaseModel, above: str = "") -> Keys:
    """By full key. base: None: there is nothing to lay it on."""
    found: Keys = {}
    for name in type(wanted).model_fields:
        old, new, key = getattr(base, name, None), getattr(wanted, name), f"{above}{name}"
        if base is not None and old == new:
            continue
        if isinstance(new, BaseModel):
            found |= _leaves(old if type(old) is type(new) else None, new, f"{key}.")
        else:
            found[key] = new if new is None or isinstance(new, bool | int | float) else str(new)
    return found
