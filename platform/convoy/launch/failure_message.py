"""The message that a job has failed, from the process that started its run: the gang may have been lost as a whole."""

import os
import shlex
import time

from convoy.config.notify import TARGET
from convoy.config.run import RunConfig
from convoy.job.lineage import config_digest, read_history
from convoy.job.record import read_config, target_steps
from convoy.report.notifications.message import Commands
from convoy.report.notifications.moments import Occurrence
from convoy.report.notifications.notifier import Outbox, Subject, job_message
from convoy.storage import Store


def notify_of_failure(store: Store, job: str, cause: str, go_on: str) -> None:
    """Send `failed`, where the job's newest configuration wants it and no gang has sent it. store: the job's. cause: in
    one line. go_on: the command that continues the job. Raises StoreUnavailable and ValueError."""
    digest = config_digest(read_history(store))
    if digest is None or TARGET not in os.environ:
        return
    config = RunConfig.model_validate(read_config(store, digest))
    commands = Commands(go_on, f"convoy show {shlex.quote(job)}")
    subject = Subject(job, commands, target_steps(store, config.model_dump(mode="json")))
    occurrence = Occurrence("failed", time.time(), 0, cause)
    Outbox(config.notify, store).post("failed", lambda: job_message(occurrence, store, subject))
