"""What of a configuration the time of its steps and saves follows from, beside the machines: what two trainings must
have alike for one to tell something of the other."""

from convoy.config.json_text import short_hash
from convoy.config.run import RunConfig

TRAIN = (
    "global_batch",
    "micro_batch",
    "param_dtype",
    "reduce_dtype",
    "activation_checkpointing",
    "attention",
    "compile",
    "loss_chunk_tokens",
    "threads_per_rank",
)
"""Keys of `train` that a step's time depends on. Others, such as `steps` and `seed`, make no other training."""

MODEL_UNTIMED = ("name", "norm_eps", "rope_theta", "init_std", "init_from")
"""Keys of `model` that it does not depend on."""

_DATA = ("sequence_length", "packing", "respect_documents")
_CHECKPOINT = ("every_steps", "write_mb_per_second")


def training_hash(config: RunConfig) -> str:
    """First 16 hex digits of a SHA-256 of all that; of how batches are made only whether that is done ahead. Defaults
    are left out, so that a key which is new to this version makes no other training of one that does not set it. For
    the same reason bf16 is left out: it was the default before `train.param_dtype` had `auto`."""
    train = config.train.model_dump(mode="json", include=set(TRAIN), exclude_defaults=True)
    if train.get("param_dtype") == "bf16":
        del train["param_dtype"]
    return short_hash(
        {
            "model": config.model.model_dump(mode="json", exclude=set(MODEL_UNTIMED), exclude_defaults=True),
            "data": config.data.model_dump(mode="json", include=set(_DATA), exclude_defaults=True),
            "train": train,
            "ahead": config.train.prefetch_steps > 0,
            "fused": config.optimizer.fused,
            "parallel": config.parallel.model_dump(mode="json", exclude_defaults=True),
            "checkpoint": config.checkpoint.model_dump(mode="json", include=set(_CHECKPOINT), exclude_defaults=True),
        }
    )
