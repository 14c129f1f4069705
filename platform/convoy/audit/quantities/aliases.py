"""Other words of pages: for keys, for the options that a key has, and texts that fill two keys at once. Pure."""

import re
from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from convoy.config.errors import yaml_value

Entries = dict[str, Any]
"""What a section of the file has below each key."""

_GPUS = re.compile(
    r"^\s*((?:up to|over|more than|at least|about|around|~|≈|[<>])?\s*[\d,]+(?:\s*(?:-|–|to)\s*[\d,]+)?(?:\s*k\b)?)"  # noqa: RUF001
    r"\s*[x×*]?\s*(?!(?:k|gpus?|nodes?|machines?|instances?|hosts?)\b|x\s*\d)((?:\d+ ?GI?B )?[a-z].*)$",
    re.IGNORECASE,
)
_PER_NODE = re.compile(r"^\s*\d+[a-z ]*(?:/|\bper\b)\s*(?:node|machine|instance|host)\s*$", re.IGNORECASE)
_OF_STEPS = re.compile(r"^(?:every\s+)?(.*\d\s*k?\s*(?:steps?|iterations?))\s*$", re.IGNORECASE)
_RECOVERED = re.compile(r"^\s*([\d,]+)\s*(?:/|of|out of)\s*([\d,]+)\s*$", re.IGNORECASE)
_INSTANCES = re.compile(
    r"^\s*(?P<number>[\d,]+)\s*[x×*]?\s*(?P<type>[a-z][\w.-]*)(?: instances?| nodes?)?(?:\s+\(.*\))?$|"
    r"^\s*(?P<first>[a-z][\w.-]*)\s*[x×*]\s*(?P<last>[\d,]+)(?:\s+\(.*\))?$",
    re.IGNORECASE,
)

_KEYS = {
    "instance": "instance_type",
    "gpu": "gpu_type",
    "gpus": "num_gpus hardware",
    "ranks": "gpus world_size",
    "nodes": "num_nodes",
    "parameters": "num_parameters",
    "layers": "num_layers n_layers",
    "width": "hidden_size d_model",
    "sequence_length": "seq_len context_length",
    "global_batch": "global_batch_size",
    "micro_batch": "micro_batch_size",
    "accumulation": "gradient_accumulation_steps",
    "recomputation": "activation_checkpointing gradient_checkpointing",
    "steps": "iterations",
    "step_time": "iteration_time",
    "throughput": "tokens_per_second tokens_per_sec",
    "throughput_per_gpu": "tokens_per_second_per_gpu tokens_per_sec_per_gpu tokens_per_s_per_gpu",
    "tokens": "training_tokens",
    "time": "training_time",
    "memory_per_gpu": "peak_memory",
    "algorithm_bandwidth": "algbw",
    "bus_bandwidth": "busbw",
    "operation": "op",
}
"""By key, what else it is called. `batch_size` is none: of a step to some, and of one GPU's pass to others."""

_KEYS_WITH_UNIT = {"hours": ("time", "h"), "days": ("time", "d"), "tokens_per_day": ("throughput", "tokens/day")}
"""Words that tell the unit of a number alone, too."""

_SEVERAL = {"throughput"}
"""Keys under which a page has several figures, in seconds and in days."""

_ALIASES = {word: (key, "") for key, words in _KEYS.items() for word in words.split()} | _KEYS_WITH_UNIT

_OPTIONS: dict[str, dict[str, str]] = {
    "contents": {
        "adapters": "lora|adapter",
        "weights": "only|without|no optim|^(?!.*(?:optim|state|full)).*(?:weight|model)",
        "training_state": "optim|state|full",
    },
    "to": {"shared": "s3|fsx|lustre|nfs|shared", "nvme": "nvme|ssd|disk", "memory": "memory|ram"},
    "strategy": {
        "3d": r"3d|tensor|pipeline|\btp", "hsdp": "hybrid", "zero1": "distributed.optimi[sz]er|zero.*1",
        "zero2": "zero.*2|grad.op", "zero3": "zero.*3", "fsdp": "fsdp|full.*shard", "ddp": "data.?parallel|no.?shard",
    },
    "precision": {"fp8": "fp8|float8", "bf16": "bf16|bfloat16", "fp16": "fp16|float16|half", "fp32": "fp32|float32"},
    "recomputation": {"selective": "select", "none": "^(?:no|off|false|none)$", "full": "full", "": "^(?:yes|true)$"},
    "market": {"spot": "spot", "capacity_block": "capacity.block", "reserved": "reserv|savings.plan"},
    "directions": {"both": "bi-?direction", "one": "uni-?direction"},
}  # fmt: skip
"""By key, the first option of which a longer text has a word."""


def with_own_keys(entries: Mapping[str, Any], fields: Mapping[str, Any]) -> Entries:
    """Under the keys that a section has. Raises ValueError where it has one under two names."""
    own: Entries = {}
    for name, value in entries.items():
        plain = re.sub(r"[\s-]+", "_", name.strip().lower().replace("/", "_per_"))
        word = name if name in fields else plain
        key, unit = (word, "") if word in fields else _ALIASES.get(word, (name, ""))
        key, unit = (key, unit) if key in fields else (name, "")
        if key in own and key not in _SEVERAL:
            raise ValueError(f"{name} = {yaml_value(value)}: {key} is given, too; one key may have a list")
        bare = unit and isinstance(value, str) and re.fullmatch(r"[\d.,]+ ?[kKMBT]?", value.strip())
        figure = f"{value} {unit}" if bare else value
        own[key] = [*_listed(own[key]), *_listed(figure)] if key in own else figure
    return _split(own, fields)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def option(key: str, value: Any, field: FieldInfo | None) -> Any:
    """`ZeRO-3` is zero3, `On-demand` on_demand, and `FSx for Lustre` shared; what is none of them is left as it is."""
    if field is None or get_origin(field.annotation) is not Literal or not isinstance(value, str) or not value.strip():
        return value
    named = {_letters(each): each for each in get_args(field.annotation) if each}
    matching = (name for name, words in _OPTIONS.get(key, {}).items() if re.search(words, value.lower()))
    return named.get(_letters(value)) or next(matching, value)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _split(entries: Entries, fields: Collection[str]) -> Entries:
    """Texts that fill two keys: `32 × A100-40`, `4 × p4d.24xlarge`, `12/12`; or another key than their own. fields:
    keys that the section has: no other is made up, so that nobody is told of a key that the page does not have."""
    if _match(_PER_NODE, entries, "gpus") and "gpus_per_node" in fields and "gpus_per_node" not in entries:
        entries = {"gpus_per_node" if key == "gpus" else key: value for key, value in entries.items()}
    steps = _match(_OF_STEPS, entries, "interval")
    if steps and "interval_steps" in fields and "interval_steps" not in entries:
        entries = {**{key: value for key, value in entries.items() if key != "interval"}, "interval_steps": steps[1]}
    recovered = _match(_RECOVERED, entries, "recovered")
    if recovered and "interruptions" in fields:
        entries = _also({**entries, "recovered": recovered[1]}, "interruptions", recovered[2])
    gpus = _match(_GPUS, entries, "gpus")
    if gpus and "gpus" in fields:
        entries = {"gpu": gpus[2], **entries, "gpus": gpus[1]}
    machines = _match(_INSTANCES, entries, "instance")
    if machines:  # A link is of their type, however many there are.
        entries = {**entries, "instance": machines["type"] or machines["first"]}
        entries = _also(entries, "nodes", machines["number"] or machines["last"]) if "nodes" in fields else entries
    return entries


def _match(words: re.Pattern[str], entries: Entries, key: str) -> re.Match[str] | None:
    value = entries.get(key)
    return words.search(value) if isinstance(value, str) else None


def _also(entries: Entries, key: str, value: str) -> Entries:
    """With the value below the key, too: what stands there already may say otherwise."""
    there = _listed(entries.get(key, []))
    return {**entries, key: there if value in map(str, there) else [*there, value]}
