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

_OF_STEPS = re.compile(r"\d\s*k?\s*(?:steps?|iterations?|iters?|updates?)\s*$", re.IGNORECASE)

_RECOVERED = re.compile(r"^\s*([\d,]+)\s*(?:/|of|out of)\s*([\d,]+)\s*$", re.IGNORECASE)

_INSTANCES = re.compile(
    r"^\s*(?P<number>[\d,]+)\s*[x×*]?\s*(?P<type>[a-z][\w.-]*)(?: instances?| nodes?)?(?:\s+\(.*\))?$|"
    r"^\s*(?P<first>[a-z][\w.-]*)\s*[x×*]\s*(?P<last>[\d,]+)(?:\s+\(.*\))?$",
    re.IGNORECASE,
)

_KEYS = {
    "id": "name",
    "instance": "instance_type cluster",
    "gpu": "gpu_type gpu_model",
    "gpus": "num_gpus n_gpus gpu_count number_of_gpus hardware accelerators",
    "ranks": "gpus world_size",
    "nodes": "num_nodes n_nodes machines instances",
    "model_parallel": "model_parallel_size",
    "parameters": "params num_params num_parameters n_params total_parameters",
    "active_parameters": "active_params activated_parameters activated_params",
    "layers": "num_layers n_layers",
    "width": "hidden_size hidden_dim d_model",
    "sequence_length": "seq_len seq_length sequence_len context_length context",
    "global_batch": "global_batch_size",
    "micro_batch": "micro_batch_size local_batch_size per_gpu_batch_size batch_size_per_gpu",
    "accumulation": "gradient_accumulation gradient_accumulation_steps grad_accum accumulation_steps",
    "recomputation": "activation_checkpointing gradient_checkpointing",
    "strategy": "sharding sharding_strategy parallelism",
    "precision": "dtype",
    "steps": "iterations num_steps training_steps",
    "step_time": "iteration_time time_per_step",
    "throughput": "tokens_per_second tokens_per_sec tokens_per_s tok_per_s",
    "throughput_per_gpu": "tokens_per_second_per_gpu tokens_per_sec_per_gpu tokens_per_gpu_per_second "
    "tokens_per_s_per_gpu tokens_per_gpu_per_s tok_per_s_per_gpu",
    "samples_per_second": "samples_per_sec sequences_per_second",
    "tflops_per_gpu": "tflops achieved_tflops",
    "compute": "flops training_flops total_flops",
    "tokens": "training_tokens total_tokens tokens_trained",
    "time": "training_time wall_time wall_clock duration latency",
    "price_per_hour": "price hourly_price instance_price price_per_instance_hour price_per_node_hour",
    "price_per_gpu_hour": "gpu_price price_per_gpu",
    "cost": "total_cost training_cost",
    "cost_per_million_tokens": "cost_per_1m_tokens cost_per_m_tokens",
    "cost_per_billion_tokens": "cost_per_1b_tokens cost_per_b_tokens",
    "scaling_efficiency": "efficiency",
    "memory_per_gpu": "memory peak_memory peak_memory_per_gpu max_memory",
    "interruptions": "failures preemptions",
    "algorithm_bandwidth": "algbw algo_bandwidth",
    "bus_bandwidth": "busbw",
    "utilisation": "utilization",
    "size": "checkpoint_size message_size",
    "operation": "op collective",
}
"""By key, what else it is called. `batch_size` is none: of a step to some, and of one GPU's pass to others."""

_KEYS_WITH_UNIT = {
    "hours": ("time", "h"), "days": ("time", "d"), "weeks": ("time", "weeks"), "minutes": ("time", "min"),
    "tokens_per_day": ("throughput", "tokens/day"), "step_seconds": ("step_time", "s"),
    "seconds_per_step": ("step_time", "s"), "ms_per_step": ("step_time", "ms"), "step_time_ms": ("step_time", "ms"),
    "save_seconds": ("save_time", "s"), "load_seconds": ("load_time", "s"), "stall_seconds": ("stall", "s"),
    "cost_usd": ("cost", "USD"),
}  # fmt: skip
"""Words that tell the unit of a number alone, too."""

_SEVERAL = {"throughput"}
"""Keys under which a page has several figures, in seconds and in days."""

_ALIASES = {word: (key, "") for key, words in _KEYS.items() for word in words.split()} | _KEYS_WITH_UNIT

_OPTIONS: dict[str, dict[str, str]] = {
    "contents": {
        "adapters": r"lora|adapter",
        "training_state": r"^(?!.*(?:weights?|model)[ -]only)(?!.*(?:no|without|excl\w*) (?:the )?optim)"
                          r".*(?:optim|state|full|adam|resum)",
        "weights": r"weight|model|param",
    },
    "to": {
        "shared": r"\bs3\b|fsx|lustre|nfs|efs|gpfs|weka|ceph|shared|network|remote|object|bucket|cloud",
        "nvme": r"nvme|ssd|disk|scratch|local",
        "memory": r"memory|\bd?ram\b|cpu|host",
    },
    "strategy": {
        "3d": r"tensor|pipeline|megatron|\b[34]d\b|\b[tp]p ?=?\d*\b",
        "hsdp": r"hybrid|hsdp",
        "zero1": r"zero.{0,7}1|distributed.optimi[sz]er",
        "zero2": r"zero.{0,7}2|grad.op",
        "zero3": r"zero.{0,7}3",
        "fsdp": r"fsdp|full.?shard|fully.?sharded",
        "ddp": r"\bddp\b|data.?parallel|no.?shard",
    },
    "precision": {
        "fp8": r"fp8|float8|e4m3", "bf16": r"bf16|bfloat16", "fp16": r"fp16|float16|half", "tf32": r"tf32",
        "fp32": r"fp32|float32",
    },
    "recomputation": {
        "selective": r"select", "none": r"^(?:no|off|false|none|without|disabled)\b", "full": r"full",
        "": r"^(?:yes|on|true|enabled)\b",
    },
    "market": {
        "spot": r"spot|preempt", "capacity_block": r"capacity.block", "reserved": r"reserv|savings.plan|commit",
        "on_demand": r"on.?demand",
    },
    "directions": {"both": r"bi-?direction|both", "one": r"uni-?direction|\bone\b"},
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
    if _letters(value) in named:
        return named[_letters(value)]
    matching = (name for name, words in _OPTIONS.get(key, {}).items() if re.search(words, value.lower()))
    return next(matching, value)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _split(entries: Entries, fields: Collection[str]) -> Entries:
    """Texts that fill two keys: `32 × A100-40`, `4 × p4d.24xlarge`, `12/12`; or another key than their own. fields:
    keys that the section has: no other is made up, so that nobody is told of a key that the page does not have."""
    if _match(_PER_NODE, entries, "gpus") and "gpus_per_node" in fields and "gpus_per_node" not in entries:
        entries = {"gpus_per_node" if key == "gpus" else key: value for key, value in entries.items()}
    if _match(_OF_STEPS, entries, "interval") and "interval_steps" in fields and "interval_steps" not in entries:
        steps = re.sub(r"^every\s+", "", entries["interval"], flags=re.IGNORECASE)
        entries = {**{key: value for key, value in entries.items() if key != "interval"}, "interval_steps": steps}
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
