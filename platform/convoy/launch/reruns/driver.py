"""Running a flow until its job is done, whatever takes its machines away meanwhile."""

import os
import random
import shlex
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from convoy.config.loader import default_root
from convoy.display.formatting import duration
from convoy.gang.async_call import BackgroundCall
from convoy.gang.notices.sources import DrainRequest, request_drain
from convoy.gang.stop_signals import EndingSignals
from convoy.job.heartbeat import LiveMark, live_mark
from convoy.job.record import job_store
from convoy.launch.checks.preflight import JOB_TAG
from convoy.launch.failure_message import notify_of_failure
from convoy.launch.flow_run import ClientRun, FlowProcess
from convoy.launch.parse import CONTINUE
from convoy.launch.reruns.policy import (
    EndedRun,
    FailedTask,
    NoRerun,
    Rerun,
    RerunLimits,
    RunFacts,
    decide_rerun,
    gang_is_over,
    judge_ended_run,
    read_run_facts,
)
from convoy.launch.run_summary import read_job_report, state_line
from convoy.storage import Store, StoreUnavailable

TURN_SECONDS = 0.5
"""Between two looks at the run's process and at signals."""

LOOK_SECONDS = 5.0
"""Between two looks whether the gang has its nodes."""

STORE_SECONDS = 60.0
"""For one question to the job's root; a root that takes longer is out of reach."""

T = TypeVar("T")


@dataclass(frozen=True)
class RunRequest:
    """The arguments of `convoy run`."""

    flow: Path
    job: str
    before: Sequence[str] = ()
    """Words before the command `run`, and those after it."""
    after: Sequence[str] = ()
    root: str | None = None
    """Where jobs live; None: where the run's configuration says, or the default."""
    start_seconds: float = 3600.0
    """A gang without a running node 0 for so long is given up, and its run ended."""
    limits: RerunLimits = field(default_factory=RerunLimits)


def run_until_done(request: RunRequest) -> int:
    """Run the flow until its job is done, or another run would not help; the command's exit code."""
    history: list[EndedRun] = []
    os.environ[CONTINUE] = shlex.join(["convoy", *sys.argv[1:]])  # the flow and its tasks on this host inherit it
    with EndingSignals() as signals:
        while True:
            say(f"job {request.job}, run {len(history) + 1}")
            turn = _FlowRun(request, signals)
            history.append(turn.run())
            decision = decide_rerun(history, request.limits, random.random())
            if signals.first_signal is not None and history[-1].how != "finished":
                decision = NoRerun(128 + signals.first_signal)
            say(outcome_line(history[-1], decision))
            if isinstance(decision, Rerun) and signals.wait(decision.pause_seconds):
                decision = NoRerun(128 + int(signals.first_signal or 0))
            if isinstance(decision, NoRerun):
                if len(history) > 1:
                    say(outcome_counts(request.job, history))
                print(*turn.job_state_lines(sys.argv), sep="\n", file=sys.stderr, flush=True)
                if signals.first_signal is None:  # else somebody is there, and ended it
                    turn.notify_of_failure(history[-1])
                return decision.code


def outcome_line(ended: EndedRun, decision: Rerun | NoRerun) -> str:
    """What became of a run, in one line, and what follows."""
    what = {
        "finished": "has finished",
        "stopped": f"stopped at step {ended.step:,}",
        "drained": f"was drained at step {ended.step:,}",
        "preempted": f"was preempted at step {ended.step:,}",
        "waited": "did not get its nodes",
        "outage": "ended, and the job's root is out of reach",
        "failed": f"failed at step {ended.step:,}",
        "refused": f"was refused (exit code {ended.code})",
    }[ended.how]
    subject = ended.run or "the flow"
    reason = ended.message.splitlines()[0] if ended.message else ""
    line = f"{subject} {what}" + (f": {reason}" if reason else "")
    if isinstance(decision, Rerun):
        return f"{line}; once more in {duration(decision.pause_seconds)}"
    return f"{line}; {decision.why}" if decision.why else line


def outcome_counts(job: str, history: Sequence[EndedRun]) -> str:
    """How the runs ended, counted."""
    counts = {how: sum(ended.how == how for ended in history) for how in dict.fromkeys(e.how for e in history)}
    return f"job {job}: {len(history)} runs, " + ", ".join(f"{count} {how}" for how, count in counts.items())


def say(line: str) -> None:
    """For people, next to what the flow prints."""
    print(f"convoy: {line}", file=sys.stderr, flush=True)


class _FlowRun:
    """One run of the flow, from its start to how it ended."""

    def __init__(self, request: RunRequest, signals: EndingSignals) -> None:
        self._request = request
        self._signals = signals
        self._heeded = signals.count
        self._client: ClientRun | None = None
        self._store: Store | None = None
        self._look_at = 0.0
        self._due_since: float | None = None
        self._late = ""

    def run(self) -> EndedRun:
        """Raises ConfigError for a root that cannot be one."""
        request = self._request
        with FlowProcess(request.flow, request.before, [*request.after, "--tag", f"{JOB_TAG}{request.job}"]) as process:
            while (code := process.wait(TURN_SECONDS)) is None:
                self._heed_signals(process)
                if not self._late and self._is_overdue(process):
                    self._late = f"node 0 did not run within {duration(request.start_seconds)}"
                    process.end()
            return self._ended(process, code)

    def job_state_lines(self, words: Sequence[str]) -> list[str]:
        """The state of the job, and what to type next. words: of the command that this is."""
        job, elsewhere = self._request.job, f" --root {shlex.quote(self._request.root)}" if self._request.root else ""
        try:
            report = self._query_store(read_job_report)
        except (StoreUnavailable, ValueError):  # out of reach, or damaged: there is nothing to say of it
            return []
        lines = [state_line(job, report), f"  show      convoy show {shlex.quote(job)}{elsewhere}"]
        if report.outcome.state != "finished":
            lines.append(f"  continue  {shlex.join(['convoy', *words[1:]])}")
        return lines

    def notify_of_failure(self, ended: EndedRun) -> None:
        """No further run follows: if this one failed, perhaps with the node that would have reported it, somebody may
        want to hear of that."""
        if ended.how != "failed":
            return
        cause = ended.message.splitlines()[0] if ended.message else ""
        store = self._store or job_store(default_root(), self._request.job)
        notify_of_failure(store, self._request.job, cause, os.environ[CONTINUE])

    def _ended(self, process: FlowProcess, code: int) -> EndedRun:
        identity = process.identity
        if identity is None:
            return judge_ended_run(code, None, RunFacts(), FailedTask())
        self._find_client_and_store(process)
        facts, task, outage = RunFacts(), FailedTask(), ""
        try:
            facts = self._query_store(lambda store: read_run_facts(store, identity.run))
        except StoreUnavailable as error:
            outage = str(error)
        if code != 0 and self._client is not None:
            task = self._client.failed_task()
        return judge_ended_run(code, identity.run, facts, task, late=self._late, outage=outage)

    def _heed_signals(self, process: FlowProcess) -> None:
        """The first signal drains the gang; a second one, or one while no gang runs, ends the run."""
        if self._signals.count == self._heeded:
            return
        self._heeded = self._signals.count
        if self._signals.count == 1 and self._drain(process):
            say("the run saves and ends; a second signal ends it without that")
        else:
            process.interrupt()

    def _drain(self, process: FlowProcess) -> bool:
        """Have the run save and end, if its gang is running."""
        self._find_client_and_store(process)
        identity = process.identity
        try:
            if identity is None or not self._query_store(lambda store: _agent_is_running(store, identity.run)):
                return False
            wish = DrainRequest(run=identity.run, now=False, host=socket.gethostname(), requested=time.time())
            self._query_store(lambda store: request_drain(store, wish))
        except StoreUnavailable:
            return False
        return True

    def _is_overdue(self, process: FlowProcess) -> bool:
        """The gang's step was reached, and for too long node 0 has not run."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_SECONDS
        self._find_client_and_store(process)
        identity, client = process.identity, self._client
        if identity is None or client is None:
            return False
        try:
            waits = self._query_store(lambda store: _waits_for_nodes(store, identity.run, client))
        except (StoreUnavailable, KeyError, ValueError):  # out of reach, or written by another version
            return False
        if waits is None:
            return False
        if not waits:
            self._due_since = None
            return False
        self._due_since = self._due_since or now
        return now - self._due_since > self._request.start_seconds

    def _find_client_and_store(self, process: FlowProcess) -> None:
        """Where the run's facts are, as soon as they can be known."""
        identity = process.identity
        if self._client is None and identity is not None:
            self._client = ClientRun(identity)
        if self._store is None and self._client is not None:
            root = self._request.root or self._client.root()
            self._store = job_store(root, self._request.job) if root else None

    def _query_store(self, question: Callable[[Store], T]) -> T:
        """The answer of the job's root, by default the default one. Raises StoreUnavailable."""
        store = self._store or job_store(default_root(), self._request.job)
        return BackgroundCall("the job's root", lambda: question(store), STORE_SECONDS).result()


def _waits_for_nodes(store: Store, run: str, client: ClientRun) -> bool | None:
    """A gang of the run has no nodes yet, or none any more. None: nothing is known."""
    if _mark_of_run(store, run) is not None:
        return False
    due = client.due_gangs()
    return None if due is None else any(not gang_is_over(store, run, g.step, g.failed) for g in due)


def _agent_is_running(store: Store, run: str) -> bool:
    """Node 0's agent is running, and takes a wish."""
    mark = _mark_of_run(store, run)
    return mark is not None and not mark.preparing


def _mark_of_run(store: Store, run: str) -> LiveMark | None:
    """Of the run, if node 0 of it is at work: it prepares for its gang, or its agent is running."""
    mark = live_mark(store)
    return mark if mark is not None and mark.run == run else None
