"""One trial: a gang is started, the fault comes, the gang ends, and what became of it is looked at.

The final state is compared with that of an undisturbed run bit for bit, by the bytes of the commits, without torch.
"""

import hashlib
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from convoy.checkpoint.commits import read_commit_and_parts
from convoy.checkpoint.format import Commit, DamagedCommitError, PartRecord
from convoy.config.loader import read_overrides, resolve
from convoy.config.run import RunConfig
from convoy.drills.checks import leftover_file_problems, leftover_memory_problems, leftover_process_problems
from convoy.drills.fault import SAVE_EVERY, STEPS, DrillOptions, Fault, GangSize
from convoy.drills.gang import LOOK_SECONDS, DrillError, DrillGang
from convoy.drills.observe import Observation, trial_problems
from convoy.drills.result import TrialResult
from convoy.job.lineage import intact_tiers, newest_commit, read_history
from convoy.job.record import ensure_record, job_store, tier_stores
from convoy.storage import Store, StoreUnavailable, open_store
from convoy.storage.checksum import crc32c

ATTEMPT_SECONDS = 120.0
STEP_SECONDS = 1.5
"""For an attempt to end, and for each of its steps: several times what they take, for a machine that is busy."""

LASTING_SECONDS = 900.0
"""For a gang that runs for a given time, besides that: it may have to compile first."""

OTHERS_SECONDS = 45.0
"""When an agent has ended, for the others to end too."""

CENSUS_SECONDS = 0.5
"""Between two looks at which processes the gang has."""

MAX_PROBLEMS = 4
"""Of what is wrong with one trial."""

MAX_ATTEMPTS = 4
"""Of a fault that comes once."""

State = dict[str, str]
"""A digest for each box of a tensor and for each plain value, by what it is of."""

UndisturbedState = Callable[[RunConfig, GangSize], State]
"""The final state of a gang with this configuration to which nothing happens."""

OVERRIDES = (
    # Learnable tokens of the default model's vocabulary, made in a second; a step costs what it costs on text.
    "data.corpus.kind=synthetic data.corpus.vocab_size=4096 data.corpus.tokens=300000 "
    f"train.steps={STEPS} train.param_dtype=bf16 schedule.decay_steps=400 checkpoint.every_steps={SAVE_EVERY} "
    "checkpoint.export_model=false evaluation.sample_tokens=0 evaluation.sequences=16 evaluation.every_steps=100000"
)
"""Laid on the default job. The schedule does not depend on the number of steps: nor does the state after each."""


def config_of(fault: Fault, plan: DrillOptions, root: str) -> RunConfig:
    """Of the trial's gang. Raises ConfigError."""
    size = f"cluster.nodes={plan.size.nodes} cluster.nproc_per_node={plan.size.nproc} root={root}"
    endless = ["train.steps=1000000"] if _must_be_ended(fault) else []
    return resolve({}, read_overrides(" ".join([OVERRIDES, size, *plan.words, *fault.overrides(), *endless])))


def undisturbed_config(config: RunConfig, steps: int) -> RunConfig:
    """What computes the same as `config` for so many steps, with none of what only a fault needs."""
    plain = resolve({}, read_overrides(OVERRIDES))
    return config.model_copy(
        update={
            "train": config.train.model_copy(update={"steps": steps}),
            "checkpoint": plain.checkpoint.model_copy(update={"verify": False}),
            "notices": plain.notices,
        }
    )


@dataclass(frozen=True)
class GangResult:
    """A gang that has ended."""

    observed: Observation
    state: State
    """Of the newest commit; empty without one."""
    wrong: list[str]
    """What is wrong, one line each."""


def run_trial(
    fault: Fault, plan: DrillOptions, job: str, jobs: Path, undisturbed_state: UndisturbedState
) -> tuple[TrialResult, Observation | None]:
    """fault: made for this trial. jobs: folder of the jobs' roots, where the fault wants none of its own."""
    if (lacking := fault.missing_requirement()) is not None:
        return TrialResult(ok=False, not_run=lacking), None
    with ExitStack() as stack:
        try:
            fault.setup(stack)
        except (RuntimeError, OSError, subprocess.TimeoutExpired) as error:
            return TrialResult(ok=False, not_run=f"what the drill needs: {error}".splitlines()[0]), None
        root = fault.job_root() or str(jobs)
        try:
            ran = run_gang(fault, plan, config_of(fault, plan, root), job, root)
            stack.close()  # of the fault nothing is left while the undisturbed gang runs
            wrong, equal, commit = list(ran.wrong), None, ran.observed.commit
            if fault.expected().same_state and commit is not None:
                reference = undisturbed_state(undisturbed_config(ran.observed.config, commit.step), plan.size)
                different = differing_names(ran.state, reference)
                equal = not different
                if different:
                    wrong.append(f"the final state differs in {len(different)} values, such as {different[0]}")
        except (DrillError, TimeoutError, DamagedCommitError, StoreUnavailable) as error:
            return TrialResult(ok=False, reason=f"{type(error).__name__}: {error}"), None
    lost, repeated = ran.observed.samples_lost_and_repeated()
    return TrialResult(
        ok=not wrong,
        reason=summarize_problems(wrong),
        detected_s=ran.observed.detected_s,
        recovered_s=ran.observed.recovered_s,
        beyond_s=ran.observed.new_progress_s,
        steps_recomputed=ran.observed.steps_recomputed,
        samples_lost=lost,
        samples_repeated=repeated,
        final_state_equal=equal,
        target_detected_s=fault.detection_target_seconds(ran.observed),
        target_recovered_s=fault.recovery_target_seconds(ran.observed),
    ), ran.observed


def run_gang(fault: Fault, plan: DrillOptions, config: RunConfig, job: str, root: str) -> GangResult:
    """The gang of a trial, to its end; nothing of it runs afterwards. Raises DrillError, StoreUnavailable, ..."""
    with new_gang(fault, config, job, root) as gang:
        course = _TrialDriver(gang)
        course.run()
        left = leftover_process_problems(gang.pids)
        gang.kill()
        gone = gang.killed_nodes()
        for node in range(plan.size.nodes):
            left += leftover_file_problems(gang.temporary_folder(node)) if node not in gone else []
        left += leftover_memory_problems(course.pids)
        tiers = tier_stores(root, job, config)
        commit, state = read_final_state(tiers)
        observed = Observation(
            fault=fault,
            config=config,
            injected=tuple(gang.injected),
            events=gang.progress().events,
            history=read_history(tiers[0], tiers[1:]),
            results=gang.attempt_results(),
            commit=commit,
            drained=course.drained,
        )
    if not gang.injected and fault.expected().way != "undisturbed":
        left = ["the fault was never put in", *left]
    return GangResult(observed, state, [*left, *trial_problems(observed, plan.slack)])


def run_undisturbed(fault: Fault, plan: DrillOptions, config: RunConfig, jobs: Path, job: str) -> State:
    """The final state of a gang of this configuration. fault: none. Raises DrillError if something went wrong."""
    ran = run_gang(fault, plan, config, job, str(jobs))
    if ran.wrong:
        raise DrillError(f"the undisturbed run: {summarize_problems(ran.wrong)}")
    return ran.state


def new_gang(fault: Fault, config: RunConfig, job: str, root: str) -> DrillGang:
    """The gang, whose data are there; no process of it is started yet."""
    from convoy.data.job_data import prepare_job_data

    data = prepare_job_data(config, open_store(root))
    ensure_record(job_store(root, job, config), job, config, data.fingerprint)
    return DrillGang(fault, config, job, root, data.id, data.fingerprint)


def _must_be_ended(fault: Fault) -> bool:
    """The gang trains until the drill has it save and end."""
    return fault.seconds is not None or fault.endless


class _TrialDriver:
    """A gang's, from its first attempt to its last."""

    def __init__(self, gang: DrillGang) -> None:
        self.pids: set[int] = set()
        self.drained = False
        self._gang = gang
        self._seconds = gang.fault.seconds
        self._began: float | None = None
        """When the first step was done."""
        self._census_at = 0.0

    def run(self) -> None:
        """Raises DrillError for what does not end."""
        gang, fault = self._gang, self._gang.fault
        gang.start()
        while True:
            self._run_attempt()
            finished = all(each.outcome and each.outcome.outcome == "finished" for each in gang.attempt_results()[-1])
            most = 10**6 if fault.repeated else MAX_ATTEMPTS
            if finished or self.drained or gang.attempt + 1 >= most:
                return
            fault.repair(gang)
            gang.start()

    def _run_attempt(self) -> None:
        """Until the newest attempt has ended on all nodes."""
        gang = self._gang
        until, ended_at = time.monotonic() + self._attempt_limit_seconds(), None
        while not gang.all_nodes_ended():
            now = time.monotonic()
            ended_at = ended_at or (now if gang.any_node_ended() else None)
            if now > until or (ended_at is not None and now > ended_at + OTHERS_SECONDS):
                self._record_pids(now)
                raise DrillError(
                    f"the gang did not end: {'; '.join(each.error or 'ended' for each in gang.attempt_results()[-1])}"
                )
            self._inject_or_drain(now)
            time.sleep(LOOK_SECONDS)

    def _attempt_limit_seconds(self) -> float:
        if _must_be_ended(self._gang.fault):
            return LASTING_SECONDS + (self._seconds or 0.0)
        return ATTEMPT_SECONDS + STEP_SECONDS * self._gang.config.train.steps

    def _inject_or_drain(self, now: float) -> None:
        gang, fault = self._gang, self._gang.fault
        self._record_pids(now)
        progress = gang.progress()
        if self._began is None and progress.steps_done > 0:
            self._began = now
        if self._should_drain(now):
            if not self.drained:
                self.drained = True
                gang.drain()
            return
        if (fault.repeated or not gang.injected) and not gang.any_node_ended() and fault.should_inject(progress):
            gang.injected.append(fault.inject(gang))

    def _should_drain(self, now: float) -> bool:
        if self._seconds is None:
            return _must_be_ended(self._gang.fault) and bool(self._gang.injected)
        return self._began is not None and now >= self._began + self._seconds

    def _record_pids(self, now: float) -> None:
        if now >= self._census_at:
            self._census_at = now + CENSUS_SECONDS
            self.pids |= self._gang.pids()


def summarize_problems(wrong: Sequence[str]) -> str:
    """The first few of them, and how many more there are."""
    more = len(wrong) - MAX_PROBLEMS
    return "; ".join([*wrong[:MAX_PROBLEMS], *([f"and {more} more"] if more > 0 else [])])


def read_final_state(tiers: Sequence[Store]) -> tuple[Commit | None, State]:
    """The newest commit that counts on any tier, the root first, and its state; without one, nothing. Raises
    StoreUnavailable, and DamagedCommitError where it is not what was written."""
    history = read_history(tiers[0], tiers[1:])
    newest = newest_commit(history)
    if newest is None:
        return None, {}
    store = tiers[intact_tiers(history, newest)[0]]
    commit, parts = read_commit_and_parts(store, newest)
    state: State = {}
    for part in parts:
        state |= _read_part_state(store, commit, part)
    return commit, state


def differing_names(one: State, other: State) -> list[str]:
    """What is not the same in both, or only in one of them."""
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def _read_part_state(store: Store, commit: Commit, part: PartRecord) -> State:
    files = [store.read(commit.prefix + file.name) for file in part.files]
    for file, data in zip(part.files, files, strict=True):
        chunks = [data[start : start + part.chunk_bytes] for start in range(0, len(data), part.chunk_bytes)]
        if [crc32c(chunk) for chunk in chunks] != file.crc32c:
            raise DamagedCommitError(f"{store.uri}/{commit.prefix}{file.name}: not what was written")
    state = {}
    for shard in part.shards:
        data = files[shard.file][shard.start : shard.start + shard.bytes]
        box = f"{shard.name} {shard.dtype} {shard.shape}: {shard.size} from {shard.offset}"
        state[box] = hashlib.sha256(data).hexdigest()
    return state | {f"value {value.name}": repr(value.value) for value in part.values}
