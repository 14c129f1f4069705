"""Other words for the keys of a file of claims. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from convoy.config.errors import shown

_WORDS = {
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

_WITH_UNIT = {
    "hours": ("time", "h"), "days": ("time", "d"), "weeks": ("time", "weeks"), "minutes": ("time", "min"),
    "tokens_per_day": ("throughput", "tokens/day"), "step_seconds": ("step_time", "s"),
    "seconds_per_step": ("step_time", "s"), "ms_per_step": ("step_time", "ms"), "step_time_ms": ("step_time", "ms"),
    "save_seconds": ("save_time", "s"), "load_seconds": ("load_time", "s"), "stall_seconds": ("stall", "s"),
    "cost_usd": ("cost", "USD"),
}  # fmt: skip
"""Words that tell the unit of a number alone, too."""

_SEVERAL = {"throughput"}
"""Keys under which a page has several figures, in seconds and in days."""

_ALIASES = {word: (key, "") for key, words in _WORDS.items() for word in words.split()} | _WITH_UNIT


def without_aliases(told: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Under the keys that a section has. Raises ValueError where it tells one under two names."""
    found: dict[str, Any] = {}
    for name, value in told.items():
        plain = re.sub(r"[\s-]+", "_", name.strip().lower().replace("/", "_per_"))
        word = name if name in fields else plain
        key, unit = (word, "") if word in fields else _ALIASES.get(word, (name, ""))
        key, unit = (key, unit) if key in fields else (name, "")
        if key in found and key not in _SEVERAL:
            raise ValueError(f"{name} = {shown(value)}: {key} is given, too; one key may have a list")
        bare = unit and isinstance(value, str) and re.fullmatch(r"[\d.,]+ ?[kKMBT]?", value.strip())
        figure = f"{value} {unit}" if bare else value
        found[key] = [*_listed(found[key]), *_listed(figure)] if key in found else figure
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
