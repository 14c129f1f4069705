"""The message that a job has failed, from the process that started its run: the gang may have been lost as a whole."""

import os
import shlex
import time

from convoy.config.errors import one_line
from convoy.config.notify import TARGET
from convoy.config.run import RunConfig
from convoy.gang.async_call import BackgroundCall, say
from convoy.job.lineage import config_digest, read_history
from convoy.job.record import read_config, target_steps
from convoy.report.notifications.message import Commands
from convoy.report.notifications.moments import Occurrence
from convoy.report.notifications.notifier import DELIVER_SECONDS, Outbox, Subject, job_message
from convoy.storage import Store

SECONDS = 2 * DELIVER_SECONDS
"""For the message, with what it takes to read the job's log."""


def notify_of_failure(store: Store, job: str, cause: str, go_on: str) -> None:
    """Send `failed`, where the job's newest configuration wants it and no gang has sent it. store: the job's. cause: in
    one line. go_on: the command that continues the job. Whatever hinders the message costs a line."""
    if TARGET not in os.environ:
        return
    try:
        BackgroundCall("notify", lambda: _notify(store, job, cause, go_on), SECONDS).result()
    except Exception as error:  # the job's configuration may be of another version
        say(f"convoy: notify: {one_line(error)}", error=True)


def _notify(store: Store, job: str, cause: str, go_on: str) -> None:
    digest = config_digest(read_history(store))
    if digest is None:
        return
    config = RunConfig.model_validate(read_config(store, digest))
    commands = Commands(go_on, f"convoy show {shlex.quote(job)}")
    subject = Subject(job, commands, target_steps(store, config.model_dump(mode="json")))
    occurrence = Occurrence("failed", time.time(), 0, cause)
    Outbox(config.notify, store).deliver("failed", lambda: job_message(occurrence, store, subject))
