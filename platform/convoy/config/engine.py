"""Which library trains the model, and what may be set in that library's own words.

Convoy owns batch sizes, precision, clipping, optimizer, schedule and checkpoints whatever the engine is: each has one
key. A file of the library's that sets the same may agree, or say `auto`; anything else is refused by its name.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from convoy.config.base import FrozenConfig
from convoy.config.errors import ConfigError, missing_extra, name_hint, yaml_value
from convoy.config.parallel import ParallelConfig
from convoy.config.train import OptimizerConfig, TrainConfig

EngineName = Literal["convoy", "accelerate", "deepspeed"]

ENGINES: tuple[EngineName, ...] = get_args(EngineName)

STAGE = 3
"""ZeRO's stage, unless it is set: weights are sharded too, as by Convoy's own engine."""

_ZERO = {
    "stage", "overlap_comm", "contiguous_gradients", "reduce_scatter", "reduce_bucket_size", "allgather_partitions",
    "allgather_bucket_size", "sub_group_size", "stage3_prefetch_bucket_size", "stage3_param_persistence_threshold",
    "stage3_model_persistence_threshold", "stage3_max_live_parameters", "stage3_max_reuse_distance",
    "stage3_gather_16bit_weights_on_model_save",
}  # fmt: skip
"""Keys of `zero_optimization` that change how ZeRO communicates, or saves by itself, and not what a rank keeps."""

_OFFLOADS = ("offload_optimizer", "offload_param")
"""Keys of `zero_optimization` that keep masters and moments, or the weights of stage 3, in host memory. To NVMe, or to
two devices by a ratio, there is no offloading: no checkpoint would find the state."""

DEEPSPEED_KEYS = {"zero_optimization", "wall_clock_breakdown", "comms_logger"}
"""Keys of DeepSpeed's configuration that Convoy takes over as they are. Not `gradient_predivide_factor` and
`prescale_gradients`: in DeepSpeed 0.19.8, stage 3 with them divides gradients twice or fails in an assertion."""

_WITHOUT_EFFECT = {"steps_per_print", "zero_allow_untested_optimizer"}
"""Keys of DeepSpeed's configuration that may have any value: Convoy sets them, and they train nothing differently."""

_LAUNCHER = {
    "compute_environment", "debug", "enable_cpu_affinity", "machine_rank", "main_process_ip", "main_process_port",
    "main_training_function", "num_machines", "num_processes", "rdzv_backend", "same_network", "use_cpu",
}  # fmt: skip
"""Keys of accelerate's file for its launcher, which is not used: `cluster` has the machines."""

_TPU: dict[str, tuple[Any, ...]] = {
    "downcast_bf16": (False, "no"),
    "tpu_use_cluster": (False,),
    "tpu_use_sudo": (False,),
    "tpu_env": ([],),
}
"""Keys for TPUs that accelerate writes into every file, with the values that have no effect."""

AUTO = "auto"


class EngineConfig(FrozenConfig):
    """The library that distributes, computes and updates. In a file, `engine: deepspeed`, or with settings
    `engine: {deepspeed: {zero_optimization: {stage: 2}}}`, or with the library's own file
    `engine: {deepspeed: ds_config.json}`."""

    name: EngineName = "convoy"
    """`convoy` is FSDP2 with all of `parallel`. `accelerate` is its FSDP2 plugin; `deepspeed` is ZeRO, stage 3 unless
    the settings name another. Checkpoints are the same, so a job may continue with another engine."""
    settings: dict[str, Any] = {}
    """In the library's own words, as its configuration file has them. What Convoy sets itself may only agree."""

    @property
    def zero_stage(self) -> int:
        """Of DeepSpeed: 1 shards the optimizer's state, 2 gradients too, 3 weights too."""
        return int(self.settings.get("zero_optimization", {}).get("stage", STAGE))

    @property
    def offloads(self) -> dict[str, Any]:
        """What of DeepSpeed's state is in host memory while GPUs compute: settings by the name of their key."""
        zero = self.settings.get("zero_optimization", {})
        return {key: zero[key] for key in _OFFLOADS if zero.get(key) and zero[key].get("device") == "cpu"}


def check_engine_offload(engine: EngineConfig) -> None:
    """For ranks without a GPU. Raises ConfigError where the engine is to offload."""
    for key, value in engine.offloads.items():
        raise ConfigError(
            f"engine.deepspeed.zero_optimization.{key} = {yaml_value(value)}: there is no GPU: everything is in host "
            "memory already"
        )


def engine_text(engine: EngineConfig) -> str:
    """`DeepSpeed ZeRO-3`, as people name it."""
    names = {"convoy": "Convoy", "accelerate": "accelerate", "deepspeed": f"DeepSpeed ZeRO-{engine.zero_stage}"}
    return names[engine.name]


def missing_package(name: EngineName) -> str:
    """The line for an engine whose package is not installed."""
    return f"engine = {name}: {missing_extra(name, name)}"


def refused_keys(
    engine: EngineConfig, train: TrainConfig, optimizer: OptimizerConfig, parallel: ParallelConfig
) -> Iterator[str]:
    """What the engine cannot do, or what contradicts it: lines with the key, its value and what would be right."""
    if engine.name == "convoy":
        if engine.settings:
            yield f"engine.settings = {yaml_value(engine.settings)}: only with accelerate or deepspeed"
        return
    for key in ("tensor", "pipeline"):
        if (ranks := getattr(parallel, key)) > 1:
            yield f"parallel.{key} = {ranks}: must be 1 with engine = {engine.name}"
    for key, needed in (("strategy", "fsdp"), ("wrap", "block"), ("cpu_offload", False)):
        if (value := getattr(parallel, key)) != needed:
            yield f"parallel.{key} = {yaml_value(value)}: must be {yaml_value(needed)} with engine = {engine.name}"
    if engine.name == "deepspeed":
        yield from _refused_deepspeed(engine.settings, train, optimizer)
    else:
        yield from _refused_accelerate(engine.settings, train, parallel)


def _refused_deepspeed(settings: Mapping[str, Any], train: TrainConfig, optimizer: OptimizerConfig) -> Iterator[str]:
    adamw = optimizer.model_dump(mode="json", include={"lr", "betas", "eps", "weight_decay"})
    bf16 = AUTO if train.param_dtype == AUTO else {"enabled": train.param_dtype == "bf16"}
    own: dict[str, tuple[str, Any]] = {
        "train_batch_size": ("train.global_batch", train.global_batch),
        "train_micro_batch_size_per_gpu": ("train.micro_batch", AUTO),
        "gradient_accumulation_steps": ("train.micro_batch", AUTO),
        "gradient_clipping": ("train.clip_norm", train.clip_norm or 0.0),
        "bf16": ("train.param_dtype", bf16),
        "fp16": ("train.param_dtype", {"enabled": False}),
        "optimizer": ("optimizer", {"type": "AdamW", "params": adamw}),
        "scheduler": ("schedule", AUTO),
        "checkpoint": ("checkpoint", AUTO),
    }
    yield from _refused("engine.deepspeed", settings, own, DEEPSPEED_KEYS | _WITHOUT_EFFECT)
    zero = settings.get("zero_optimization", {})
    if not isinstance(zero, Mapping):
        yield f"engine.deepspeed.zero_optimization = {yaml_value(zero)}: must be a mapping"
        return
    at = "engine.deepspeed.zero_optimization"
    yield from _refused(at, zero, {}, _ZERO | set(_OFFLOADS))
    if (stage := zero.get("stage", STAGE)) not in (1, 2, 3):
        yield f"{at}.stage = {yaml_value(stage)}: must be the number 1, 2 or 3"
    for key in _OFFLOADS:
        if zero.get(key) is not None:
            yield from _refused_offload(f"{at}.{key}", zero[key])
    if zero.get("offload_param") is not None and stage != STAGE:
        yield f"{at}.offload_param: only with stage 3, not {yaml_value(stage)}"


def _refused_offload(at: str, value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{at} = {yaml_value(value)}: must be a mapping, e.g. {{device: cpu}}"
        return
    yield from _refused(at, value, {}, {"device", "pin_memory"})
    if (device := value.get("device", "none")) not in ("cpu", "none"):
        yield f"{at}.device = {yaml_value(device)}: must be cpu or none"


def _refused_accelerate(settings: Mapping[str, Any], train: TrainConfig, parallel: ParallelConfig) -> Iterator[str]:
    precision = {"auto": AUTO, "bf16": "bf16", "fp32": "no"}[train.param_dtype]
    own: dict[str, tuple[str, Any]] = {
        "distributed_type": ("engine: accelerate", "FSDP"),
        "mixed_precision": ("train.param_dtype", precision),
    }
    yield from _refused("engine.accelerate", settings, own, {*_LAUNCHER, *_TPU, "fsdp_config"})
    for key, harmless in _TPU.items():
        if (value := settings.get(key, harmless[0])) not in harmless:
            yield f"engine.accelerate.{key} = {yaml_value(value)}: must be {yaml_value(harmless[0])}: no rank has a TPU"
    fsdp = settings.get("fsdp_config", {})
    if not isinstance(fsdp, Mapping):
        yield f"engine.accelerate.fsdp_config = {yaml_value(fsdp)}: must be a mapping"
        return
    recomputes = train.activation_checkpointing == "full"
    of_fsdp: dict[str, tuple[str, Any]] = {
        "fsdp_version": ("engine: accelerate", 2),
        "fsdp_reshard_after_forward": ("parallel.reshard_after_forward", parallel.reshard_after_forward),
        "fsdp_offload_params": ("parallel.cpu_offload", parallel.cpu_offload),
        "fsdp_activation_checkpointing": ("train.activation_checkpointing", recomputes),
        "fsdp_auto_wrap_policy": ("parallel.wrap", "TRANSFORMER_BASED_WRAP"),
        "fsdp_transformer_layer_cls_to_wrap": ("parallel.wrap", AUTO),
        "fsdp_state_dict_type": ("checkpoint", "SHARDED_STATE_DICT"),
    }
    # Without effect, since Convoy itself loads the weights: accelerate writes true for FSDP2.
    yield from _refused("engine.accelerate.fsdp_config", fsdp, of_fsdp, {"fsdp_cpu_ram_efficient_loading"})


def _refused(at: str, settings: Mapping[str, Any], own: Mapping[str, tuple[str, Any]], free: set[str]) -> Iterator[str]:
    """own: what Convoy sets itself: the key that does, and the value that agrees with it."""
    for key, value in settings.items():
        if key in own:
            by, agrees = own[key]
            if not _agrees(value, agrees):
                yield f"{at}.{key} = {yaml_value(value)}: {_remedy(key, by, agrees)}"
        elif key not in free:
            yield f"{at}.{key} = {yaml_value(value)}: unknown key; {name_hint(key, sorted({*own, *free}))}"


def _agrees(value: Any, own: Any) -> bool:
    """Whether everything in a value is `auto`, or as Convoy's."""
    if isinstance(value, Mapping):
        parts = own if isinstance(own, Mapping) else {}
        return all(_agrees(each, parts.get(key, AUTO)) for key, each in value.items())
    return value in (AUTO, own)


def _remedy(key: str, by: str, own: Any) -> str:
    if key == "fp16":
        return "fp16 is not supported; set train.param_dtype to bf16 or fp32"
    if by == "train.param_dtype":
        return "train.param_dtype sets it: set that to bf16 or fp32 instead, and leave this out"
    return f"{by} sets it; leave it out, or write {yaml_value(own)}"
