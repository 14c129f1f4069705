"""The type that `train.param_dtype: auto` stands for in a job that has trained before."""

from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig, with_param_dtype
from convoy.config.train import TrainConfig
from convoy.job.lineage import newest_config, read_history
from convoy.job.record import read_config
from convoy.storage import ObjectMissing, Store


def with_recorded_dtype(config: RunConfig, store: Store, ran_with: str | None = None) -> RunConfig:
    """The configuration with the type of an earlier generation where it says `auto`, so that a resumed job never
    changes its type; unchanged while the job has no generation.

    ran_with: hash of that generation's configuration; None: the newest one's. Raises StoreUnavailable, and ConfigError
    if it is gone.
    """
    if config.train.param_dtype != "auto":
        return config
    ran_with = ran_with or newest_config(read_history(store))
    if not ran_with:
        return config
    try:
        recorded = read_config(store, ran_with)
    except ObjectMissing:
        lost = f"{store.uri} no longer has the configuration that names the job's type"
        raise ConfigError(f"train.param_dtype = auto: {lost}; set bf16 or fp32") from None
    train = TrainConfig.model_validate({"param_dtype": recorded["train"]["param_dtype"]})
    return config if train.param_dtype == "auto" else with_param_dtype(config, train.param_dtype)
