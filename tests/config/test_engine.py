"""The engine that trains, and what may be set in a library's own words."""

import json
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.utils import ComputeEnvironment, DistributedType

from convoy.config.engine import check_engine_offload
from convoy.config.errors import ConfigError
from convoy.config.loader import read_overrides, read_run, resolve
from convoy.config.run import RunConfig, training_hash


def run_of(text: str, overrides: str = "") -> RunConfig:
    return resolve(read_run(text), read_overrides(overrides))


def test_an_engine_is_a_name_settings_or_the_library_s_own_file(tmp_path: Path) -> None:
    assert run_of("").engine.name == "convoy"
    assert run_of("engine: deepspeed").engine.zero_stage == 3
    inline = run_of("engine: {deepspeed: {zero_optimization: {stage: 2}}}")
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": "auto", "zero_optimization": {"stage": 2}}))
    of_file = run_of(f"engine: {{deepspeed: {tmp_path}/ds.json}}")
    assert inline.engine.zero_stage == of_file.engine.zero_stage == 2
    assert RunConfig.model_validate(of_file.model_dump(mode="json")) == of_file


def test_an_override_sets_a_key_of_the_settings_or_takes_another_engine() -> None:
    text = "engine: {deepspeed: {zero_optimization: {stage: 2, reduce_bucket_size: 1000}}}"
    more = run_of(text, "engine.settings.zero_optimization.stage=1").engine
    assert more.settings == {"zero_optimization": {"stage": 1, "reduce_bucket_size": 1000}}
    assert run_of(text, "engine=accelerate").engine.settings == {}
    stage = "engine.settings.zero_optimization.stage=1"
    both = run_of("", "engine=deepspeed " + stage), run_of("", stage + " engine=deepspeed")
    assert {engine.engine.zero_stage for engine in both} == {1}
    assert run_of("", "engine.deepspeed.zero_optimization.stage=1").engine == both[0].engine


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine: horovod", "engine.name = horovod: must be one of"),
        ("engine: {settings: {a: 1}}", 'engine.settings = {"a": 1}: only with accelerate or deepspeed'),
        ("engine: {deepspeed: none.json}", "engine.deepspeed = none.json: No such file or directory"),
        ("{engine: deepspeed, parallel: {tensor: 2}}", "parallel.tensor = 2: must be 1 with engine = deepspeed"),
        ("{engine: accelerate, parallel: {strategy: ddp}}", "parallel.strategy = ddp: must be fsdp with engine = acc"),
        (
            "{engine: deepspeed, parallel: {cpu_offload: true}}",
            "parallel.cpu_offload = true: must be false with",
        ),
        (
            "engine: {deepspeed: {train_batch_size: 7}}",
            "engine.deepspeed.train_batch_size = 7: train.global_batch sets it; leave it out, or write",
        ),
        (
            "engine: {deepspeed: {gradient_accumulation_steps: 4}}",
            "engine.deepspeed.gradient_accumulation_steps = 4: train.micro_batch sets it; leave it out, or write auto",
        ),
        ("engine: {deepspeed: {optimizer: {type: Lion}}}", "engine.deepspeed.optimizer = {"),
        ("engine: {deepspeed: {optimizer: {params: {lr: 1}}}}", "optimizer sets it; leave it out, or write {"),
        ("engine: {deepspeed: {bf16: {enabled: true}}}", "train.param_dtype sets it: set that to bf16 or fp32 instead"),
        ("engine: {deepspeed: {fp16: {enabled: true}}}", "fp16 is not supported; set train.param_dtype to bf16 or"),
        ("engine: {deepspeed: {a: 1, b: 2}}", "; also refused: engine.deepspeed.b"),
        ("engine: {deepspeed: 3}", "engine.deepspeed = 3: must be settings, or the path of a file that has them"),
        ("engine: {fairscale: {}}", 'engine = {"fairscale": {}}: must be one of convoy, accelerate, deepspeed, or one'),
        ("engine: {deepspeed: {}, accelerate: {}}", "must be one of convoy, accelerate, deepspeed, or one of these"),
        ("engine: {deepspeed: {zero_optimisation: {}}}", "did you mean zero_optimization?"),
        (
            "engine: {deepspeed: {zero_optimization: {stage: 0}}}",
            "zero_optimization.stage = 0: must be the number 1, 2 or 3",
        ),
        ("engine: {deepspeed: {zero_optimization: {zero_hpz_partition_size: 8}}}", "partition_size = 8: unknown key"),
        ("{engine: deepspeed, parallel: {pipeline: 2}}", "parallel.pipeline = 2: must be 1 with engine = deepspeed"),
        (
            "engine: {deepspeed: {zero_optimization: {offload_optimizer: {device: nvme, nvme_path: /x}}}}",
            "engine.deepspeed.zero_optimization.offload_optimizer.nvme_path = /x: unknown key; ",
        ),
        (
            "engine: {deepspeed: {zero_optimization: {offload_param: {device: nvme}}}}",
            "engine.deepspeed.zero_optimization.offload_param.device = nvme: must be cpu or none",
        ),
        (
            "engine: {deepspeed: {zero_optimization: {stage: 2, offload_param: {device: cpu}}}}",
            "engine.deepspeed.zero_optimization.offload_param: only with stage 3, not 2",
        ),
        (
            "engine: {deepspeed: {zero_optimization: {offload_optimizer: true}}}",
            "engine.deepspeed.zero_optimization.offload_optimizer = true: must be a mapping, e.g. {device: cpu}",
        ),
        ("engine: {deepspeed: {zero_optimization: 3}}", "engine.deepspeed.zero_optimization = 3: must be a mapping"),
        ("engine: {accelerate: {distributed_type: MULTI_GPU}}", "engine.accelerate.distributed_type = MULTI_GPU: "),
        ("engine: {accelerate: {fsdp_config: {fsdp_version: 1}}}", "engine.accelerate.fsdp_config.fsdp_version = 1: "),
        ("engine: {accelerate: {tpu_use_sudo: true}}", "tpu_use_sudo = true: must be false: no rank has a TPU"),
        ("engine: {accelerate: {tpu_env: [A=1]}}", 'tpu_env = ["A=1"]: must be []: no rank has a TPU'),
    ],
)
def test_what_contradicts_or_is_not_known_is_one_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        run_of(text)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_batch_of_deepspeed_s_own_file_that_contradicts_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 7}))
    with pytest.raises(ConfigError, match=r"^engine.deepspeed.train_batch_size = 7: train.global_batch sets it; .*64$"):
        run_of(f"{{engine: {{deepspeed: {tmp_path}/ds.json}}, train: {{global_batch: 64}}}}")


def test_offloading_needs_a_gpu() -> None:
    text = "engine: {deepspeed: {zero_optimization: {stage: 1, offload_optimizer: {device: %s, pin_memory: true}}}}"
    on, off = run_of(text % "cpu").engine, run_of(text % "none").engine
    assert on.offloads == {"offload_optimizer": {"device": "cpu", "pin_memory": True}}
    with pytest.raises(ConfigError) as raised:
        check_engine_offload(on)
    assert str(raised.value) == (
        'engine.deepspeed.zero_optimization.offload_optimizer = {"device": "cpu", "pin_memory": true}: '
        "there is no GPU: everything is in host memory already"
    )
    check_engine_offload(off)


def test_what_agrees_is_taken_over() -> None:
    batch, clip = RunConfig().train.global_batch, RunConfig().train.clip_norm
    adamw = {"lr": 3e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": "auto"}
    agrees: dict[str, Any] = {
        "train_batch_size": batch,
        "gradient_clipping": clip,
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": adamw},
        "scheduler": {"type": "auto", "params": {"warmup_num_steps": "auto"}},
        "steps_per_print": 10,
        "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
    }
    config = resolve({"engine": {"name": "deepspeed", "settings": agrees}}, {})
    assert config.engine.settings == agrees
    written = {"num_processes": 8, "distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}
    assert resolve({"engine": {"name": "accelerate", "settings": written}}, {}).engine.settings == written


def test_a_file_that_accelerate_writes_for_fsdp2_is_accepted(tmp_path: Path) -> None:
    """Its questions answered by their defaults: accelerate adds fields that nobody was asked about."""
    answers = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_offload_params": False,
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_cpu_ram_efficient_loading": True,
        "fsdp_activation_checkpointing": False,
    }
    file = tmp_path / "accelerate.yaml"
    ClusterConfig(
        compute_environment=ComputeEnvironment.LOCAL_MACHINE,
        distributed_type=DistributedType.FSDP,
        mixed_precision="bf16",
        use_cpu=False,
        debug=False,
        num_processes=2,
        same_network=True,
        downcast_bf16="no",
        tpu_env=[],
        fsdp_config=answers,
    ).to_yaml_file(file)
    text = (
        f"{{engine: {{accelerate: {file}}}, train: {{param_dtype: bf16}}, parallel: {{reshard_after_forward: true}}}}"
    )
    settings = run_of(text).engine.settings
    assert settings["fsdp_config"] == answers
    assert {"downcast_bf16": "no", "tpu_env": [], "tpu_use_cluster": False}.items() <= settings.items()


def test_another_engine_is_another_training_and_the_default_is_none() -> None:
    assert training_hash(run_of("engine: deepspeed")) != training_hash(run_of(""))
    plain = RunConfig().model_dump(mode="json")
    del plain["engine"]
    assert training_hash(RunConfig.model_validate(plain)) == training_hash(RunConfig())
