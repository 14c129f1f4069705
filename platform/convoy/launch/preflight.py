"""What is checked before a run exists, so that what cannot work never starts."""

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from convoy.config.cluster import ClusterConfig
from convoy.config.errors import ConfigError
from convoy.config.load import default_root
from convoy.config.run import RunConfig
from convoy.job.lineage import CommitRef, lost, newest_commit, newest_config, places, read_history
from convoy.job.live import check_not_live
from convoy.job.record import check_name, check_same_job, job_store, job_uri, read_config, read_record
from convoy.launch import support
from convoy.launch.host import check_interpreter, local_gpus
from convoy.launch.inputs import check_inputs, existing_folder
from convoy.launch.known_prices import with_price
from convoy.launch.rent import gang_price
from convoy.launch.same_job import check_same_data, check_same_model
from convoy.storage import ObjectMissing, Store, StoreUnavailable, open_store

JOB_TAG = "job:"


@dataclass(frozen=True)
class Finished:
    """The job named has nothing left to do."""

    job: str
    step: int
    steps: int

    def __str__(self) -> str:
        return f"job {self.job} is finished: {self.step} steps are done; set train.steps above {self.step} to go on"


def on_this_host(config: RunConfig, gpus: int) -> RunConfig:
    """The configuration with what only the launching host tells: the default root, and a default gang that fits.

    The default gang of two processes becomes one on a host with one GPU, which two ranks cannot share.
    """
    if config.root is None:
        config = config.model_copy(update={"root": default_root()})
    if gpus == 1 and config.cluster == ClusterConfig():
        config = config.model_copy(update={"cluster": ClusterConfig(nodes=1)})
    return config


def spent_seconds(store: Store) -> float:
    """Gang seconds of all generations so far, from the event log: what the card shows as the job's time."""
    from convoy.events.log import read_events  # every task imports this module, and few ask for this
    from convoy.report.fold import fold

    return fold(read_events(store)).wall_seconds


def named_job(option: str | None, tags: Sequence[str]) -> str | None:
    """The job the user named, by `--job NAME` or `--tag job:NAME`; None: it is to be named after the run."""
    tagged = [tag.removeprefix(JOB_TAG) for tag in tags if tag.startswith(JOB_TAG)]
    names = sorted({*tagged, *([option] if option else [])})
    if len(names) > 1:
        raise ConfigError(f"job = {', '.join(names)}: must be one name; --job and --tag job:... name different ones")
    return check_name(names[0]) if names else None


def preflight(config: RunConfig, job: str | None, datastore: str | None) -> Finished | None:
    """Raise ConfigError for a run that cannot work; tell if the job is finished already."""
    _check_settings(config, datastore, local_gpus())
    config = priced(config)
    if config.cluster.backend == "local" or _sees_root(config):
        support.check_budget(config)
    if config.cluster.backend == "local":
        support.check_offload(config, local_gpus())
        check_interpreter()
        check_inputs(config)
    if not _sees_root(config):
        return None
    for tier in _seen_tiers(config):
        with _outage(f"checkpoint.tiers = {tier}"):
            _check_place("checkpoint.tiers", tier, config)
    with _outage(f"root = {config.root}"):
        if job is not None:
            return _check_job(config, job)
        _check_root(config)
    return None


def _check_settings(config: RunConfig, datastore: str | None, gpus: int) -> None:
    """Raises ConfigError, in one line, with all that is to be set up and filled in before a first run: what is told one
    at a time is found one start after the other."""
    demands: tuple[Callable[[], None], ...] = (
        lambda: support.check(config, datastore, gpus),
        lambda: support.check(config, None, gpus),  # what the datastore's refusal hides
        lambda: check_extra(config),
    )
    told = list(dict.fromkeys(why for demand in demands if (why := _refusal(demand))))
    if told:
        raise ConfigError("; also ".join(told))


def _refusal(demand: Callable[[], None]) -> str | None:
    try:
        demand()
    except ConfigError as error:
        return str(error)
    return None


def check_extra(config: RunConfig) -> None:
    """Raise ConfigError where what starts the gang is not installed."""
    if config.cluster.backend == "kubernetes" and importlib.util.find_spec("kubernetes") is None:
        raise ConfigError("cluster.backend = kubernetes: needs the extra: pip install 'metaflow-convoy[kubernetes]'")


def priced(config: RunConfig) -> RunConfig:
    """With the price that the run will have, by which its budget is checked; as it was where the root, which may hold a
    newer one, cannot be seen from here. Raises ConfigError."""
    if config.cluster.backend == "local" or not _sees_root(config):
        return config
    with _outage(f"root = {config.root}"):
        return with_price(config)


def notice_line(config: RunConfig, environ: Mapping[str, str]) -> str:
    """Which sources tell ahead that this machine is taken away, where the gang runs on it; each node of another gang
    tells by itself."""
    if config.cluster.backend != "local":
        return "convoy: each node tells in its log, and on the card, which of its sources of notices answer"
    from convoy.gang.notices import machine

    return f"convoy: {machine.in_words(machine.standings(environ))}"


def check_job_is_free(config: RunConfig, job: str) -> None:
    """Raise ConfigError if another run is running the job."""
    if _sees_root(config):
        with _outage(f"root = {config.root}"):
            check_not_live(job_store(str(config.root), job, config), job)


@contextlib.contextmanager
def _outage(where: str) -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        raise ConfigError(f"{where}: {error}") from None


def _sees_root(config: RunConfig) -> bool:
    """Not where the root is a file system that only the cluster's machines see."""
    return config.cluster.backend == "local" or str(config.root).startswith("s3://")


def _seen_tiers(config: RunConfig) -> list[str]:
    tiers = config.checkpoint.tiers
    return [tier for tier in tiers if config.cluster.backend == "local" or tier.startswith("s3://")]


def _check_root(config: RunConfig) -> None:
    if config.cluster.backend == "local":
        _check_place("root", str(config.root), config)


def _check_place(key: str, uri: str, config: RunConfig) -> None:
    """Reading an object that is not there tells a bucket that does not exist, or is not ours, from an empty one."""
    try:
        open_store(uri, config.checkpoint.store).read("JOB.json")
    except ObjectMissing:
        _check_writable(key, uri)


def _check_writable(key: str, uri: str) -> None:
    if uri.startswith("s3://"):
        return
    there = existing_folder(Path(uri).absolute())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ConfigError(f"{key} = {uri}: {there} is not a folder that can be written to")


def _check_job(config: RunConfig, job: str) -> Finished | None:
    store = job_store(str(config.root), job, config)
    others = [open_store(job_uri(tier, job), config.checkpoint.store) for tier in _seen_tiers(config)]
    record, history = read_record(store), read_history(store, others)
    if record is None:
        _check_root(config)
        return None
    check_same_job(record, config)
    if lost(history):
        raise ConfigError(f"job = {job}: it had checkpoints, and every one is damaged or gone; name a new job")
    newest, ran_with = newest_commit(history), newest_config(history)
    if ran_with is not None:
        kept = read_config(store, ran_with)
        check_same_data(job, kept, config)
        if newest is not None:
            check_same_model(job, kept, config)
    check_not_live(store, job)
    if newest is not None:
        _check_format([store, *others][places(history, newest)[0]], newest)
    step = newest.step if newest else 0
    if step >= config.train.steps:
        return Finished(job, step, config.train.steps)
    _check_budget(config, job, store)
    return None


def _check_format(store: Store, newest: CommitRef) -> None:
    """Raises ConfigError for a commit of another version of Convoy. Damage is for the restore to judge."""
    from convoy.checkpoint.format import DamagedCommitError, parsed  # every task imports this module, few ask for this

    with contextlib.suppress(DamagedCommitError, ObjectMissing):
        parsed(store.read(newest.name), f"{store.uri}/{newest.name}")


def _check_budget(config: RunConfig, job: str, store: Store) -> None:
    limits, price = config.budget, gang_price(config)
    if limits.max_hours is None and limits.max_cost_usd is None:
        return
    hours = spent_seconds(store) / 3600
    if limits.max_hours is not None and hours >= limits.max_hours:
        raise ConfigError(f"budget.max_hours = {limits.max_hours:g}: job {job} has used {hours:.3g} hours; raise it")
    if limits.max_cost_usd is not None and price is not None and hours * price >= limits.max_cost_usd:
        raise ConfigError(
            f"budget.max_cost_usd = {limits.max_cost_usd:g}: job {job} has used {hours * price:.2f} USD; raise it"
        )
