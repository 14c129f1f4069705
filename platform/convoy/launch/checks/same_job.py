"""Whether a configuration can continue a job, told from the one the job ran with last. Pure.

The data's fingerprint decides in the end; it is known only once the corpus was read. What the configuration alone
tells is told before the run starts.
"""

from collections.abc import Mapping
from typing import Any

from convoy.config.errors import ConfigError, yaml_value
from convoy.config.run import RunConfig

Json = Mapping[str, Any]

_DATA_MAY_CHANGE = {"data.cache", "data.corpus.path", "data.corpus.suffixes"}
"""Where the same content lies."""

_TOKENIZER_MAY_CHANGE = {"data.tokenizer.path", "data.tokenizer.eos_token"}
"""The same file elsewhere, or its default end of document spelled out."""

_MODEL_MAY_CHANGE = {f"model.{key}" for key in ("name", "init_from", "init_std", "dropout", "build", "args")}
"""What leaves the shape of the weights as it is."""

_NO_TOKENIZER = ("shards", "synthetic")


def check_same_data(job: str, earlier: Json, config: RunConfig) -> None:
    """Raise ConfigError, naming the key and both values, if `config` makes other sequences than `earlier` did.

    earlier: the configuration the job ran with, as plain data.
    """
    ours = config.model_dump(mode="json")["data"]
    unused = {"tokenizer"} if config.data.corpus.kind in _NO_TOKENIZER else set()
    _compare(
        job, "data", _without(earlier["data"], unused), _without(ours, unused), _DATA_MAY_CHANGE | _TOKENIZER_MAY_CHANGE
    )


def check_same_model(job: str, earlier: Json, config: RunConfig) -> None:
    """Raise ConfigError, naming the key and both values, if weights of `earlier` do not fit the model of `config`."""
    was, now = earlier["model"], config.model_dump(mode="json")["model"]
    if ("build" in was) != ("build" in now):
        raise ConfigError(
            f"model = {now['name']}: job {job} was started with {was['name']}; keep that, or name a new job"
        )
    _compare(job, "model", was, now, _MODEL_MAY_CHANGE)


def _compare(job: str, at: str, was: Any, now: Any, free: set[str]) -> None:
    """Keys that only one of the two has are of another version, or of another kind, which differs itself."""
    if at in free:
        return
    if isinstance(was, Mapping) and isinstance(now, Mapping):
        for key in sorted(was.keys() & now.keys(), key=lambda key: key != "kind"):
            _compare(job, f"{at}.{key}", was[key], now[key], free)
    elif was != now:
        raise ConfigError(
            f"{at} = {yaml_value(now)}: job {job} was started with {yaml_value(was)}; keep that, or name a new job"
        )


def _without(tree: Json, keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in tree.items() if key not in keys}
