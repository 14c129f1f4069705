"""What `python FLOW run` prints last, in the launcher: what became of the run's job, and the next three commands."""

import contextlib
import os
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from convoy.config.loader import default_root
from convoy.config.notify import TARGET
from convoy.display.formatting import plural
from convoy.gang.async_call import BackgroundCall
from convoy.job.events.gang import cause_in_words
from convoy.job.heartbeat import read_heartbeat
from convoy.job.record import job_store, target_steps
from convoy.launch.checks.preflight import JOB_TAG
from convoy.launch.parse import RUN, same_command
from convoy.report.analysis.outcome import state_word
from convoy.report.fold import fold
from convoy.report.pages.sections import newest_checkpoint_line
from convoy.report.train_report import TrainReport
from convoy.storage import Store

LOOK_SECONDS = 10.0
"""For the job's root to answer: the run is over, and a person waits."""

RUNNER_OPTION = "--runner-attribute-file"
"""With it Metaflow's Runner and `convoy run` start a flow: they report how it ended."""


@dataclass(frozen=True)
class LaunchedRun:
    """A run, as its launcher knows it."""

    flow: str
    run: str
    """Id."""
    has_job_option: bool
    """The flow has a Parameter `job`; any other hears of its job by a tag."""
    cards: tuple[str, ...] = ()
    """Names of the steps whose cards show how the run ended, the best one first."""


def print_run_summary(launched: LaunchedRun) -> None:
    """To whoever typed the command. Whatever hinders it costs these lines and nothing else."""
    if any(word.partition("=")[0] == RUNNER_OPTION for word in sys.argv):
        return
    with contextlib.suppress(Exception, KeyboardInterrupt):
        sys.stdout.flush()
        for line in _summary_lines(launched):
            print(line, file=sys.stderr, flush=True)


def state_line(job: str, report: TrainReport) -> str:
    """The state of the job, and what a run that continues it begins with."""
    if report.started is None:
        return f"convoy: job {job} has not begun. {newest_checkpoint_line(report)}"
    reason = f" ({report.outcome.reason})" if report.outcome.reason else ""
    is_script = report.target_steps is None
    reported_none = is_script and report.outcome.state == "finished" and not report.step
    step = "" if reported_none else f" at step {report.step:,}"
    state = f"convoy: job {job}: {state_word(report)}{step}{reason}."
    saves_own = is_script and not report.checkpoints
    return state if saves_own else f"{state} {newest_checkpoint_line(report)}"


def next_commands(
    launched: LaunchedRun, job: str, root: str, command: str, report: TrainReport, card: str | None
) -> list[str]:
    """How to see the run's card, to look at the job, and to continue it. command: starts the same flow again. card:
    the task that has it."""
    elsewhere = "" if root == default_root() else f" --root {shlex.quote(root)}"
    own = "" if launched.has_job_option or RUN not in sys.argv[:-1] else "  # with its other parameters as they were"
    go_on = f"  continue  {command} {_named(launched, job)}{own}"
    if report.started is None:
        return [go_on]
    finished, is_script = report.outcome.state == "finished", not report.steps  # those of a script are its own
    return [
        *([f"  card      {shlex.join(['python', sys.argv[0]])} card view {card}"] if card else []),
        f"  show      convoy show {shlex.quote(job)}{elsewhere}",
        *([] if finished and is_script else [f"{go_on}  # with more train.steps" if finished else go_on]),
    ]


def _summary_lines(launched: LaunchedRun) -> Iterator[str]:
    from metaflow import Run, get_metadata, namespace

    from convoy.launch.flow_run import ClientRun, RunIdentity
    from convoy.launch.parse import option_word_counts

    namespace(None)
    pathspec = f"{launched.flow}/{launched.run}"
    jobs = sorted(tag.removeprefix(JOB_TAG) for tag in Run(pathspec).tags if tag.startswith(JOB_TAG))
    root = ClientRun(RunIdentity(pathspec, get_metadata())).root() or default_root()
    if not jobs and launched.has_job_option:
        yield "convoy: the run ended before its job began. No checkpoint exists yet."
    unknown = 0
    for job in jobs:
        read = partial(lambda job: read_job_report(job_store(root, job)), job)
        report = BackgroundCall("the job's root", read, LOOK_SECONDS).result()
        if len(jobs) > 1 and report.started is None:
            unknown += 1
            continue
        yield state_line(job, report)
        if len(jobs) == 1:
            command = same_command(sys.argv, option_word_counts(), os.environ)
            yield from next_commands(launched, job, root, command, report, _card_task(launched))
            if report.outcome.state in ("failed", "lost") and TARGET in os.environ:
                _notify_of_failure(root, job, report, f"{command} {_named(launched, job)}")
    if unknown:
        yield f"convoy: {root} has nothing of {plural(unknown, 'job')} of this run: not begun, or of another root."


def _named(launched: LaunchedRun, job: str) -> str:
    """The option by which a run of the flow continues the job."""
    return f"--job {shlex.quote(job)}" if launched.has_job_option else f"--tag {shlex.quote(JOB_TAG + job)}"


def _notify_of_failure(root: str, job: str, report: TrainReport, go_on: str) -> None:
    """Nobody else does where node 0 was lost. go_on: the command that continues the job."""
    from convoy.launch.failure_message import notify_of_failure

    cause = cause_in_words(report.outcome.cause) if report.outcome.cause else report.outcome.reason
    notify_of_failure(job_store(root, job), job, cause, go_on)


def _card_task(launched: LaunchedRun) -> str | None:
    """The task whose card shows how the run ended, of a gang node 0's; None: the run ended before any."""
    from metaflow import Step
    from metaflow.exception import MetaflowNotFound

    for name in launched.cards:
        with contextlib.suppress(MetaflowNotFound):
            step = Step(f"{launched.flow}/{launched.run}/{name}")
            task = next(iter(step.control_tasks()), None) or step.task
            if task is not None:
                return f"{launched.run}/{name}/{task.id}"
    return None


def read_job_report(store: Store) -> TrainReport:
    """As far as the job has come; of a job that its root does not have, nothing. Raises StoreUnavailable."""
    from convoy.job.events.log import read_events

    beat = read_heartbeat(store, time.time())
    return fold(read_events(store), target_steps(store, {}), beat)
