"""What is checked before a run exists, so that what cannot work never starts."""

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from convoy.config.cluster import ClusterConfig
from convoy.config.errors import ConfigError, PrerequisiteMissing, collect_missing
from convoy.config.loader import default_root
from convoy.config.run import RunConfig
from convoy.job.heartbeat import check_not_live
from convoy.job.lineage import CommitRef, all_commits_lost, config_digest, intact_tiers, newest_commit, read_history
from convoy.job.record import check_name, check_same_job, job_store, job_uri, read_config, read_record
from convoy.launch.checks import compatibility
from convoy.launch.checks.compatibility import Demand, check_same_data, check_same_model, is_placeholder
from convoy.launch.checks.host import check_interpreter, check_local_prerequisites, local_gpus
from convoy.launch.checks.watchers import check_notify, check_trackers
from convoy.launch.monitor.ports import check_monitor
from convoy.launch.pricing import gang_usd_per_hour, settle_price_from_root
from convoy.storage import ObjectMissing, Store, StoreUnavailable, is_shared, open_store
from convoy.storage import uri as storage_uri

NO_CREDENTIALS = "AWS credentials: none found"
"""Start of the line about the setting without which no bucket can be reached."""


def account_demands(config: RunConfig) -> Iterator[Demand]:
    """Demands that raise PrerequisiteMissing, each for one thing."""
    if config.cluster.backend == "local":
        return
    yield _check_credentials
    yield partial(
        _has_setting, "DATASTORE_SYSROOT_S3", "a folder for Metaflow's artifacts, such as s3://BUCKET/metaflow"
    )
    yield from (_batch_demands if config.cluster.backend == "batch" else _kubernetes_demands)(config)


def _batch_demands(config: RunConfig) -> Iterator[Demand]:
    yield partial(_has_setting, "BATCH_JOB_QUEUE", "a job queue of CPU machines, for the steps that do not train")
    if config.cluster.iam_role is None:
        yield partial(
            _has_setting, "ECS_S3_ACCESS_IAM_ROLE", "a job role that may use the buckets; or set cluster.iam_role"
        )
    yield partial(
        _has_setting, "SERVICE_URL", "the metadata service, through which Metaflow learns that all nodes ended"
    )
    if config.cluster.image is None:
        yield partial(_has_setting, "BATCH_CONTAINER_IMAGE", _IMAGE)


def _kubernetes_demands(config: RunConfig) -> Iterator[Demand]:
    yield _check_kubeconfig
    if config.cluster.image is None:
        yield partial(_has_setting, "KUBERNETES_CONTAINER_IMAGE", _IMAGE)


_IMAGE = "an image with torch, NCCL and the EFA plugin; or set cluster.image"


def _has_setting(name: str, meaning: str) -> None:
    """As Metaflow reads its settings: from the environment, or from the profile that `metaflow configure` wrote."""
    from metaflow import metaflow_config

    if not getattr(metaflow_config, name):
        raise PrerequisiteMissing(f"METAFLOW_{name}: not set: {meaning}")


def _check_credentials() -> None:
    import botocore.session

    if botocore.session.Session().get_credentials() is None:
        raise PrerequisiteMissing(f"{NO_CREDENTIALS}; `aws configure` keeps them, or set AWS_PROFILE")


def _check_kubeconfig() -> None:
    """As the client of Kubernetes looks for it; within a pod the pod's service account does."""
    named = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    inside = "KUBERNETES_SERVICE_HOST" in os.environ
    if not inside and not any(Path(each).expanduser().is_file() for each in named.split(os.pathsep) if each):
        raise PrerequisiteMissing(f"KUBECONFIG: no file {named}; `aws eks update-kubeconfig --name CLUSTER` writes one")


JOB_TAG = "job:"


@dataclass(frozen=True)
class FinishedJob:
    """The job named has nothing left to do."""

    job: str
    step: int
    steps: int

    def __str__(self) -> str:
        return f"job {self.job} is finished: {self.step} steps are done; set train.steps above {self.step} to continue"


def with_host_defaults(config: RunConfig, gpus: int) -> RunConfig:
    """The configuration with what only the launching host knows: the default root, and a default gang that fits.

    The default gang of two processes becomes one on a host with one GPU, which two ranks cannot share.
    """
    if config.root is None:
        config = config.model_copy(update={"root": default_root()})
    if gpus == 1 and config.cluster == ClusterConfig():
        config = config.model_copy(update={"cluster": ClusterConfig(nodes=1)})
    return config


def read_spent_seconds(store: Store) -> float:
    """Gang seconds of all generations so far, from the event log: what the card shows as the job's time."""
    from convoy.job.events.log import read_events  # every task imports this module, and few ask for this
    from convoy.report.fold import fold

    return fold(read_events(store)).wall_seconds


def named_job(option: str | None, tags: Sequence[str]) -> str | None:
    """The job the user named, by `--job NAME` or `--tag job:NAME`; None: it is to be named after the run."""
    tagged = [tag.removeprefix(JOB_TAG) for tag in tags if tag.startswith(JOB_TAG)]
    names = sorted({*tagged, *([option] if option else [])})
    if len(names) > 1:
        raise ConfigError(f"job = {', '.join(names)}: must be one name; --job and --tag job:... name different ones")
    return check_name(names[0]) if names else None


@dataclass(frozen=True)
class Survey:
    """What is known of a run before it exists."""

    config: RunConfig
    """With the price that the run will have, or without one where its root, which may hold a newer one, is out of
    reach."""
    finished: FinishedJob | None = None
    missing: tuple[ConfigError, ...] = ()
    """What the user has still to provide."""
    root_answers: bool = True


def preflight(config: RunConfig, job: str | None, datastore: str | None) -> FinishedJob | None:
    """Raise ConfigError for a run that cannot work; return the job's end if it is finished already."""
    missing = missing_settings(config, datastore)  # if anything is, no bucket is contacted
    result = Survey(config, None, tuple(missing)) if missing else _survey_reachable(config, job, _visible_here(config))
    if result.missing:
        raise combine_missing(result.missing)
    return result.finished


def combine_missing(missing: Sequence[ConfigError]) -> PrerequisiteMissing:
    """All of it, in the one line of a refusal."""
    return PrerequisiteMissing("; also ".join(map(str, missing)))


def survey_run(config: RunConfig, job: str | None, datastore: str | None) -> Survey:
    """The same for a dry run, which needs nothing that the user has still to provide. Raises ConfigError for a
    configuration that is wrong."""
    missing = [*missing_settings(config, datastore), *collect_missing(account_demands(config))]
    result = _survey_reachable(config, job, _reachable_here(config, missing))
    return replace(result, missing=(*missing, *result.missing))


def survey_root(config: RunConfig, missing: Sequence[ConfigError]) -> Survey:
    """The part of it that account and root alone decide. missing: of the settings."""
    missing = [*missing, *collect_missing(account_demands(config))]
    reachable = _reachable_here(config, missing)(str(config.root))
    result = _survey_at_root(config, None) if reachable else _survey_without_root(config)
    return replace(result, missing=(*missing, *result.missing))


def missing_settings(config: RunConfig, datastore: str | None) -> list[PrerequisiteMissing]:
    """What is to be installed and filled in before a first run, all of it: what is reported one at a time is found one
    start after the other. Raises ConfigError for a configuration that is wrong."""
    watchers = (lambda: check_trackers(config), lambda: check_notify(config, os.environ))
    demands = compatibility.run_demands(config, datastore, local_gpus())
    return collect_missing([*demands, lambda: check_extra(config), *watchers])


def _survey_reachable(config: RunConfig, job: str | None, sees: Callable[[str], bool]) -> Survey:
    """sees: whether a root or a tier can be looked at from here."""
    tiers = (partial(_check_tier, config, tier) for tier in config.checkpoint.tiers if sees(tier))
    missing = collect_missing([*_host_demands(config), *tiers])
    result = _survey_at_root(config, job) if sees(str(config.root)) else _survey_without_root(config)
    return replace(result, missing=(*missing, *result.missing))


def _survey_at_root(config: RunConfig, job: str | None) -> Survey:
    try:
        with _outage_as_missing(f"root = {config.root}"):
            _check_location("root", str(config.root), config)
            config = settle_price_if_visible(config)
            compatibility.check_budget(config)
            return Survey(config, None if job is None else _check_existing_job(config, job))
    except PrerequisiteMissing as error:
        return Survey(config, missing=(error,), root_answers=False)


def _survey_without_root(config: RunConfig) -> Survey:
    """A bucket that cannot be reached may hold prices; so may a file system of the cluster."""
    return Survey(config, root_answers=not is_shared(str(config.root)))


def _host_demands(config: RunConfig) -> Iterator[Callable[[], None]]:
    if config.cluster.backend == "local":
        yield lambda: compatibility.check_offload(config, local_gpus())
        yield check_interpreter
        yield lambda: check_local_prerequisites(config)
        yield lambda: check_monitor(config)


def _check_tier(config: RunConfig, tier: str) -> None:
    with _outage_as_missing(f"checkpoint.tiers = {tier}"):
        _check_location("checkpoint.tiers", tier, config)


def check_extra(config: RunConfig) -> None:
    """Raise ConfigError where what starts the gang, or reaches its storage, is not installed."""
    for location in (str(config.root), *config.checkpoint.tiers):
        storage_uri.check_extra(location)
    if config.cluster.backend == "kubernetes" and importlib.util.find_spec("kubernetes") is None:
        raise PrerequisiteMissing(
            "cluster.backend = kubernetes: needs the extra: pip install 'metaflow-convoy[kubernetes]'"
        )


def settle_price_if_visible(config: RunConfig) -> RunConfig:
    """With the price that the run will have, by which its budget is checked; as it was where the root, which may hold a
    newer one, cannot be seen from here. Raises ConfigError."""
    if config.cluster.backend == "local" or not _visible_here(config)(str(config.root)):
        return config
    with _outage_as_missing(f"root = {config.root}"):
        return settle_price_from_root(config)


def notice_line(config: RunConfig, environ: Mapping[str, str]) -> str | None:
    """Which sources announce that this machine is reclaimed, where the gang runs on it; each node of another gang
    reports its own. None: it is no EC2 instance, which nobody takes away."""
    if config.cluster.backend != "local":
        return "convoy: each node reports in its log, and on the card, which of its sources of notices answer"
    from convoy.gang.notices.sources import describe_statuses, may_have_metadata, poll_machine_sources

    return f"convoy: {describe_statuses(poll_machine_sources(environ))}" if may_have_metadata(environ) else None


def check_job_is_free(config: RunConfig, job: str) -> None:
    """Raise ConfigError if another run is running the job."""
    if _visible_here(config)(str(config.root)):
        with _outage_as_missing(f"root = {config.root}"):
            check_not_live(job_store(str(config.root), job, config), job)


@contextlib.contextmanager
def _outage_as_missing(where: str) -> Iterator[None]:
    try:
        yield
    except StoreUnavailable as error:
        raise PrerequisiteMissing(f"{where}: {error}") from None


def _visible_here(config: RunConfig) -> Callable[[str], bool]:
    """Whether a place can be looked at from here: not a file system that only the cluster's machines see."""
    return lambda place: config.cluster.backend == "local" or is_shared(place)


def _reachable_here(config: RunConfig, missing: Sequence[ConfigError]) -> Callable[[str], bool]:
    """The same, but for buckets that have no name yet, and all buckets where there are no credentials."""
    visible, no_buckets = _visible_here(config), any(str(each).startswith(NO_CREDENTIALS) for each in missing)
    return lambda place: visible(place) and not (is_shared(place) and (no_buckets or is_placeholder(place)))


def _check_location(key: str, uri: str, config: RunConfig) -> None:
    """Reading an object that is not there shows whether the bucket is empty, or does not exist or is not ours."""
    with contextlib.suppress(ObjectMissing):
        open_store(uri, config.checkpoint.store).read("JOB.json")
        return
    folder = Path(uri).absolute()
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not is_shared(uri) and not (there.is_dir() and os.access(there, os.W_OK)):
        raise ConfigError(f"{key} = {uri}: {there} is not a folder that can be written to")


def _check_existing_job(config: RunConfig, job: str) -> FinishedJob | None:
    store = job_store(str(config.root), job, config)
    others = [
        open_store(job_uri(tier, job), config.checkpoint.store)
        for tier in config.checkpoint.tiers
        if _visible_here(config)(tier)
    ]
    record, history = read_record(store), read_history(store, others)
    if record is None:
        return None
    check_same_job(record, config)
    if all_commits_lost(history):
        raise ConfigError(f"job = {job}: it had checkpoints, and every one is damaged or gone; name a new job")
    newest, ran_with = newest_commit(history), config_digest(history)
    with contextlib.suppress(ObjectMissing):  # of a job that was copied from a tier of an older version
        earlier = read_config(store, ran_with) if ran_with is not None else None
        if earlier is not None:
            check_same_data(job, earlier, config)
            if newest is not None:
                check_same_model(job, earlier, config)
    check_not_live(store, job)
    if newest is not None:
        _check_commit_format([store, *others][intact_tiers(history, newest)[0]], newest)
    step = newest.step if newest else 0
    if step >= config.train.steps:
        return FinishedJob(job, step, config.train.steps)
    _check_budget_left(config, job, store)
    return None


def _check_commit_format(store: Store, newest: CommitRef) -> None:
    """Raises ConfigError for a commit of another version of Convoy. Damage is for the restore to judge."""
    from convoy.checkpoint.format import DamagedCommitError, parse_commit  # every task imports this module

    with contextlib.suppress(DamagedCommitError, ObjectMissing):
        parse_commit(store.read(newest.name), f"{store.uri}/{newest.name}")


def _check_budget_left(config: RunConfig, job: str, store: Store) -> None:
    limits, price = config.budget, gang_usd_per_hour(config)
    if limits.max_hours is None and limits.max_cost_usd is None:
        return
    hours = read_spent_seconds(store) / 3600
    if limits.max_hours is not None and hours >= limits.max_hours:
        raise ConfigError(f"budget.max_hours = {limits.max_hours:g}: job {job} has used {hours:.3g} hours; raise it")
    if limits.max_cost_usd is not None and price is not None and hours * price >= limits.max_cost_usd:
        raise ConfigError(
            f"budget.max_cost_usd = {limits.max_cost_usd:g}: job {job} has used {hours * price:.2f} USD; raise it"
        )
