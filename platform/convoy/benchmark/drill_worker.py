"""Drills as cases of a benchmark: `python -m convoy.benchmark.drill_worker GROUP.json FOLDER`.

Drills run in a process of their own: what it does to processes, and whether the gangs that it starts see a GPU, affects
nothing else. It writes a file for each drill as soon as the drill has ended.
"""

import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from convoy import __version__
from convoy.benchmark.groups import Group
from convoy.benchmark.measure.provenance import host_memory_bytes, provenance
from convoy.benchmark.results import values
from convoy.benchmark.results.case import Case, Hardware
from convoy.benchmark.results.files import write_case
from convoy.benchmark.results.values import BEYOND, DETECTED, RECOVERED
from convoy.config.benchmark import RecoveryConfig
from convoy.config.loader import read_overrides, resolve
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.drills.fault import DrillOptions, GangSize
from convoy.drills.faults import drill_named
from convoy.drills.result import DrillResult, TrialResult
from convoy.drills.runner import DrillRunner
from convoy.drills.trial import OVERRIDES
from convoy.gang.task import usable_cores
from convoy.gang.workers.processes import signal_at_end_of_parent
from convoy.model.counts import parameter_count
from convoy.training.measure.machine import device_name

NPROC = 1
"""Workers of a node: faults hit a node or one worker, and more workers would show nothing more."""


def main(group: Group, folder: Path, run: Callable[[str], DrillResult] | None = None) -> None:
    """Run every drill of the group, one after the other. run: returns a drill's trials; None: on real gangs."""
    recovery = group.recovery or RecoveryConfig()
    with tempfile.TemporaryDirectory(prefix="convoy-drill-") as temporary:
        plan = DrillOptions(size=GangSize(recovery.nodes, NPROC), trials=recovery.trials)
        runner = DrillRunner(plan, Path(temporary), lambda line: print(line, flush=True), drills=len(group.variants))
        for spec in group.variants:
            began = datetime.now(UTC)
            result = run(spec.name) if run is not None else runner.run_drill(drill_named("drill", spec.name))
            write_case(folder, case_of(group, recovery, result, began))


def case_of(group: Group, recovery: RecoveryConfig, result: DrillResult, began: datetime) -> Case:
    """The case of a drill, which is refused if this machine cannot run it. Its `config` includes the settings of the
    campaign, which is computed where the results are read."""
    ran = [trial for trial in result.trials if trial.not_run is None]
    lacking = next((trial.not_run for trial in result.trials if trial.not_run is not None), "")
    config = drilled_config(recovery.nodes)
    assert isinstance(config.model, TransformerConfig)
    keys = {key: value for key, value in config.model_dump(mode="json").items() if key != "root"}
    return Case(
        suite=group.suite,
        group=group.name,
        name=result.drill,
        status="measured" if ran else "refused",
        reason=next((trial.reason for trial in ran if not trial.ok), "") if ran else f"this machine lacks {lacking}",
        model=config.model.name,
        parameters=parameter_count(config.model),
        tokens_per_step=config.train.global_batch * config.data.sequence_length,
        config={**keys, "campaign": recovery.campaign.model_dump(mode="json")},
        hardware=Hardware(
            device=device_name(torch.device("cuda" if torch.cuda.is_available() else "cpu")),
            nodes=1,  # processes of one host stand for them
            ranks=recovery.nodes * NPROC,
            threads=max(1, usable_cores() // (recovery.nodes * NPROC)),
            cores=usable_cores(),
            memory_bytes=host_memory_bytes(),
        ),
        provenance=provenance(
            group, began, {"convoy": __version__, "python": sys.version.split()[0], "torch": torch.__version__}
        ),
        samples=samples_of(ran),
        values=values_of(ran) if ran else {},
    )


def drilled_config(nodes: int) -> RunConfig:
    """What the gangs of all drills train, apart from changes that a fault needs."""
    return resolve({}, read_overrides(f"{OVERRIDES} cluster.nodes={nodes} cluster.nproc_per_node={NPROC}"))


def samples_of(trials: Sequence[TrialResult]) -> dict[str, tuple[float, ...]]:
    """Seconds of the trials that have the figure, in their order."""
    fields = {DETECTED: "detected_s", RECOVERED: "recovered_s", BEYOND: "beyond_s"}
    samples = {
        name: tuple(seconds for trial in trials if (seconds := getattr(trial, field)) is not None)
        for name, field in fields.items()
    }
    return {name: seconds for name, seconds in samples.items() if seconds}


def values_of(trials: Sequence[TrialResult]) -> dict[str, float]:
    """Counts over the trials, and the targets if the drill has any."""
    compared = [trial.final_state_equal for trial in trials if trial.final_state_equal is not None]
    summed = (values.STEPS_RECOMPUTED, values.SAMPLES_LOST, values.SAMPLES_REPEATED)  # named alike
    counts: dict[str, float] = {
        values.TRIALS: len(trials),
        values.RECOVERED_TRIALS: sum(trial.ok for trial in trials),
        **{name: sum(getattr(trial, name) or 0 for trial in trials) for name in summed},
        values.STATES_COMPARED: len(compared),
        values.STATES_EQUAL: sum(compared),
    }
    targets = {
        values.TARGET_DETECTED_SECONDS: max((trial.target_detected_s or 0.0 for trial in trials), default=0.0),
        values.TARGET_RECOVERED_SECONDS: max((trial.target_recovered_s or 0.0 for trial in trials), default=0.0),
    }
    return {name: float(value) for name, value in counts.items()} | {name: s for name, s in targets.items() if s}


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that gangs, mounts and networks are cleaned up
    signal_at_end_of_parent(signal.SIGTERM)
    main(Group.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
