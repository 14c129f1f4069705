"""One node's part of a gang, from outside: enter, wait for how it ends, leave. A thread supervises the workers."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory

from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig, with_param_dtype
from convoy.gang import rendezvous
from convoy.gang.async_call import say
from convoy.gang.diagnosis.node_monitor import NodeMonitor
from convoy.gang.diagnosis.storage_probe import StorageProbe
from convoy.gang.messages import PREEMPTED, GangOutcome, PreemptedError
from convoy.gang.notices.notice import NoticeSource, Poller
from convoy.gang.notices.sources import DrainSource, LauncherSource, SignalSource, machine_sources
from convoy.gang.stop_signals import EndingSignals
from convoy.gang.supervisor import Supervisor
from convoy.gang.task import Node, Task
from convoy.gang.telemetry.sampler import HardwareSampler
from convoy.gang.workers.compile_cache import CompileCache
from convoy.gang.workers.prefork import SCRIPTS, TRAINING, Prefork
from convoy.gang.workers.worker import LogUpload, shared_environment
from convoy.gang.workers.worker_group import NodeContext, WorkerGroup
from convoy.job.events.registry import ParamDtypeChoice
from convoy.job.generations import FormationError
from convoy.job.lineage import Generation
from convoy.job.record import tier_stores, with_recorded_dtype
from convoy.storage import Store, folder_path

MEASURE = "convoy.training.measure.machine_probe"
"""Measures the faster type in a process of its own: the agent imports no torch."""

MEASURE_SECONDS = 120.0
"""For the measurement, most of which is the import of torch; on an idle machine it takes about three seconds."""


class Gang:
    """This node's workers, of one generation after the other. Use as a context, in the main thread where signals are
    to be notices; leaving it leaves no process behind."""

    def __init__(self, task: Task, node: Node, hindrance: Callable[[], str | None] = lambda: None) -> None:
        """hindrance: called often while the nodes come together: why they will not; None: no reason is known."""
        self._hindrance = hindrance
        self._task = task
        self._node = node
        self._tiers = tier_stores(task.root, task.job, task.config)
        self.store = self._tiers[0]
        self.sampler = HardwareSampler(node, folder_path(task.root))
        self._supervisor: Supervisor
        self._poller: Poller
        self._outcome: GangOutcome | None = None
        self._error: Exception | None = None
        self._ended = threading.Event()

    def __enter__(self) -> "Gang":
        """Form or join the first generation. Raises what `rendezvous` raises, and PreemptedError if this machine
        has notice before all have joined."""
        with ExitStack() as stack:  # undone also if a later part of this fails
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="convoy-")))
            compiled = CompileCache(self.store, folder / "compiled", uploads=self._node.leads)
            environment = shared_environment(self._node.threads_per_rank(self._task.config)) | compiled.environment
            module = TRAINING if self._task.script is None else SCRIPTS
            # First of all: its imports take longer than everything else before a worker starts.
            prefork = stack.enter_context(Prefork(environment, folder / "warm.log", module))
            context = NodeContext(self._task, self._node, self._tiers, folder, prefork, compiled)
            stack.enter_context(compiled)
            if context.is_remote:
                stack.enter_context(LogUpload(self.store, folder))
            poll_seconds = self._task.config.notices.poll_seconds
            own = self._process_notice_sources(stack)
            self._poller = stack.enter_context(Poller(self._outside_notice_sources(), poll_seconds, in_process=own))
            if self._node.leads:
                stack.enter_context(rendezvous.job_claim(self._task, self._node, self.store))
                context = replace(context, task=settle_param_dtype(self._task, self._node, self.store))
            come_together = rendezvous.form_first_generation if self._node.leads else rendezvous.join_first_generation
            formed, peers = come_together(context, self._wait_unless_preempted)
            stack.enter_context(peers)
            config = with_recorded_dtype(context.task.config, self.store, formed.generation.config_hash)
            context = replace(context, task=replace(context.task, config=config))
            self._task = context.task
            probe = stack.enter_context(StorageProbe(self._tiers, self._node.index))
            sampler = stack.enter_context(self.sampler)
            monitor = NodeMonitor(context, self._poller, probe, sampler)
            self._supervisor = Supervisor(context, peers, monitor, formed)
            thread = threading.Thread(target=self._supervise, name="agent", daemon=True)
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._supervisor.cancel)
            self._leave = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._leave.close()

    def wait(self, seconds: float) -> GangOutcome | None:
        """How the gang ended if it does within `seconds`, else None. Raises StoreUnavailable if it ended well and the
        event log cannot be written."""
        self._ended.wait(seconds)
        if self._error is not None:
            raise self._error
        return self._outcome

    @property
    def config(self) -> RunConfig:
        """With `train.param_dtype` settled."""
        return self._task.config

    @property
    def generation(self) -> Generation:
        """The newest one."""
        return self._supervisor.generation

    @property
    def workers(self) -> WorkerGroup | None:
        """The workers that run now; None between two generations."""
        return self._supervisor.workers

    def _supervise(self) -> None:
        try:
            self._outcome = self._supervisor.run()
        except Exception as error:
            self._error = error
        self._ended.set()

    def _process_notice_sources(self, stack: ExitStack) -> list[NoticeSource]:
        """What this process itself observes. Only node 0 reports a launcher that is gone: it started the others."""
        seconds, own = self._task.config.notices.deadline_seconds, list[NoticeSource]()
        if threading.current_thread() is threading.main_thread():
            own.append(SignalSource(stack.enter_context(EndingSignals()), seconds))
        if self._node.leads and self._node.shares_host:
            own.append(LauncherSource(seconds))
        return own

    def _outside_notice_sources(self) -> Sequence[NoticeSource]:
        sources = machine_sources(os.environ, self._task.config.notices, self._node.notice_file)
        if self._node.leads:
            sources.append(DrainSource(self.store, self._node.run))
        return sources

    def _wait_unless_preempted(self, seconds: float) -> None:
        """Wait, before the gang is formed. Raises PreemptedError for a notice that ends the attempt, and
        FormationError if the nodes will not come together."""
        hindrance = self._hindrance()
        if hindrance is not None:
            raise FormationError(hindrance)
        deadline = time.monotonic() + seconds
        while True:
            try:
                notice = self._poller.notices.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return
            if notice.kind == "end":
                raise PreemptedError(
                    f"{PREEMPTED}node {self._node.index} had a notice ({notice.source}): {notice.text}"
                )


def settle_param_dtype(task: Task, node: Node, store: Store) -> Task:
    """The task with a settled parameter type, for node 0 before it forms a job's first generation. The generation's
    recorded configuration holds it, from which the other nodes and every later generation of the job take it. Raises
    ConfigError if it cannot be measured."""
    if task.script is not None or task.config.train.param_dtype != "auto":
        return task
    recorded = with_recorded_dtype(task.config, store)
    if recorded.train.param_dtype != "auto":
        return replace(task, config=recorded)
    choice = _measure_dtypes(task.config, node)
    say(f"train.param_dtype = auto: this job trains in {choice.in_words()}")
    return replace(task, config=with_param_dtype(task.config, choice.param_dtype), dtype_choice=choice)


def _measure_dtypes(config: RunConfig, node: Node) -> ParamDtypeChoice:
    request = json.dumps({"config": config.model_dump(mode="json"), "world_size": node.world_size})
    environment = {**os.environ, **shared_environment(node.threads_per_rank(config))}
    try:
        done = subprocess.run(
            [sys.executable, "-m", MEASURE],
            input=request, capture_output=True, text=True, timeout=MEASURE_SECONDS, env=environment,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _measurement_error(f"no result within {MEASURE_SECONDS:g} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise _measurement_error(last[0])
    return ParamDtypeChoice.model_validate_json(done.stdout.splitlines()[-1])


def _measurement_error(why: str) -> ConfigError:
    return ConfigError(f"train.param_dtype = auto: the measurement failed ({why}); set bf16 or fp32")
