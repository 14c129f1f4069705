"""The type that `train.param_dtype: auto` stands for in a job that has trained before."""

from convoy.config.run import RunConfig, with_param_dtype
from convoy.config.train import TrainConfig
from convoy.job.lineage import newest_config, read_history
from convoy.job.record import read_config
from convoy.storage import Store


def with_recorded_dtype(config: RunConfig, store: Store, ran_with: str | None = None) -> RunConfig:
    """The configuration with the type of an earlier generation where it says `auto`, so that a resumed job never
    changes its type; unchanged while the job has no generation.

    ran_with: hash of that generation's configuration; None: the newest one's. Raises StoreUnavailable.
    """
    if config.train.param_dtype != "auto":
        return config
    ran_with = ran_with or newest_config(read_history(store))
    if not ran_with:
        return config
    train = TrainConfig.model_validate({"param_dtype": read_config(store, ran_with)["train"]["param_dtype"]})
    return config if train.param_dtype == "auto" else with_param_dtype(config, train.param_dtype)
