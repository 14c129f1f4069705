"""What trackers and notifications need before a run starts."""

from collections.abc import Mapping
from importlib.util import find_spec

from convoy.config.errors import PrerequisiteMissing, missing_extra
from convoy.config.run import RunConfig


def check_trackers(config: RunConfig) -> None:
    """Raises PrerequisiteMissing for a package that this host lacks, if the gang runs here. No tracker is contacted:
    one that cannot be reached is no reason not to train."""
    for tracker in config.trackers:
        if config.cluster.backend == "local" and find_spec(tracker.kind) is None:
            raise PrerequisiteMissing(f"trackers.{tracker.kind}: {missing_extra(tracker.kind, tracker.kind)}")


def check_notify(config: RunConfig, environ: Mapping[str, str]) -> None:
    """Raises PrerequisiteMissing where moments are to be reported and nobody would get them."""
    notify = config.notify
    if not notify.on or notify.secret is not None:
        return
    if config.cluster.backend != "local":
        raise PrerequisiteMissing(
            "notify.secret: not set, and notify.on needs a target: machines of cluster.backend = "
            f"{config.cluster.backend} do not see this one's $CONVOY_NOTIFY"
        )
    from convoy.report.notifications.send import check_target  # every task imports this module

    check_target(environ)
