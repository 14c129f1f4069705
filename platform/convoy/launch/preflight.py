"""What is checked before a run exists, so that what cannot work never starts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from convoy.config.errors import ConfigError
from convoy.config.load import default_root
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.data.precheck import precheck
from convoy.job.lineage import newest_commit, read_history
from convoy.job.live import check_not_live
from convoy.job.record import check_name, check_same_job, job_store, read_record
from convoy.launch import support
from convoy.launch.host import check_interpreter, local_gpus
from convoy.model.hf_config import check_same_shape
from convoy.storage import StoreUnavailable

JOB_TAG = "job:"


@dataclass(frozen=True)
class Finished:
    """The job named has nothing left to do."""

    job: str
    step: int
    steps: int

    def __str__(self) -> str:
        return f"job {self.job} is finished: {self.step} of {self.steps} steps are done; raise train.steps to go on"


def with_root(config: RunConfig) -> RunConfig:
    """The configuration with its root filled in: only where it is launched is the default root known."""
    return config if config.root is not None else config.model_copy(update={"root": default_root()})


def named_job(option: str | None, tags: Sequence[str]) -> str | None:
    """The job the user named, by `--job NAME` or `--tag job:NAME`; None: it is to be named after the run."""
    tagged = [tag.removeprefix(JOB_TAG) for tag in tags if tag.startswith(JOB_TAG)]
    names = sorted({*tagged, *([option] if option else [])})
    if len(names) > 1:
        raise ConfigError(f"job = {', '.join(names)}: must be one name; --job and --tag job:... name different ones")
    return check_name(names[0]) if names else None


def preflight(config: RunConfig, job: str | None, datastore: str | None) -> Finished | None:
    """Raise ConfigError for a run that cannot work; tell if the job is finished already."""
    gpus = local_gpus()
    support.check(config, datastore, gpus)
    if config.cluster.backend == "local":
        check_interpreter()
        precheck(config.data, config.model.vocab_size)
        if isinstance(config.model, TransformerConfig) and config.model.init_from is not None:
            check_same_shape(Path(config.model.init_from), config.model)
    return None if job is None else _check_job(config, job)


def _check_job(config: RunConfig, job: str) -> Finished | None:
    assert config.root is not None
    if not (config.root.startswith("s3://") or config.cluster.backend == "local"):
        return None  # the root is a file system that only the cluster's machines see
    try:
        store = job_store(config.root, job)
        record = read_record(store)
        if record is None:
            return None
        check_same_job(record, config)
        check_not_live(store, job)
        newest = newest_commit(read_history(store))
    except StoreUnavailable as error:
        raise ConfigError(f"root = {config.root}: {error}") from None
    step = newest.step if newest else 0
    return Finished(job, step, config.train.steps) if step >= config.train.steps else None
