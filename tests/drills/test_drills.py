"""Drills in real gangs of two or three nodes, with all that is checked in a trial: in CI half of those that are alike,
in the campaign every one."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from convoy.drills.fault import DrillOptions, GangSize
from convoy.drills.faults import DRILLS, drill_named
from convoy.drills.runner import DrillRunner, in_words
from convoy.drills.trial import State
from tests.campaign import in_full

pytestmark = pytest.mark.alone

BY_ROOT = ("partition", "partition-heal", "storage-full", "storage-hang")
"""Drills of what only root can spoil."""

SMALL = "model.n_layers=1 model.d_model=48 model.n_heads=3 data.sequence_length=32 train.steps=80"
"""Of the model: what is checked of it does not depend on its size. Figures are measured on the default one. Its steps
are short: there are so many of them that the fault comes before the last one."""

ASKED_FOR = ("spot-notice", "notice-then-nothing", "rebalance", "sigterm")
"""Drills of notices that a node asks for once a second, in which a small model does many steps."""

WITH_THREE = ("none", "slow-node", "double-fault")
"""Drills that two nodes do not show as well, such as who differs from the others. Each node takes its time."""

ELSEWHERE = ("worker-kill", "worker-exit0", "kill-during-save", "random")
"""Drilled below with other gangs than the rest, or in `test_cli_drill.py`."""

SLACK = 20.0
"""How much longer than its target a trial may take, on a machine that may do something else too."""

RANDOM_SECONDS = {"sample": 20, "full": 1200}
"""How long faults come at random times."""

LARGER = "model.d_model=192"
"""A model whose parts are written for two seconds: a smaller one is written too soon to be killed meanwhile."""

ENGINES = {
    "accelerate": "engine=accelerate",
    **{f"zero{stage}": f"engine.deepspeed.zero_optimization.stage={stage}" for stage in (1, 2, 3)},
}
"""How the drills' job names an engine that is not Convoy's own."""

ENGINE_DRILLS = {"worker-kill": 80, "node-kill": 80, "spot-notice": 150}
"""Steps of each drill that is repeated with those engines. These take longer for a step."""

Campaigns = Callable[..., DrillRunner]


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory: pytest.TempPathFactory) -> Campaigns:
    """One trial of each drill, with so many nodes; what they are compared with is made once."""
    states: dict[str, State] = {}

    def campaign(nodes: int, *words: str) -> DrillRunner:
        plan = DrillOptions(size=GangSize(nodes, 1), trials=1, slack=SLACK, words=(SMALL, *words))
        return DrillRunner(plan, tmp_path_factory.mktemp("drills"), print, states)

    return campaign


def passes(campaign: DrillRunner, name: str) -> None:
    result = campaign.run_drill(drill_named("drill", name))
    (trial,) = result.trials
    assert trial.not_run is None, trial.not_run
    assert trial.ok, in_words(trial)
    print(in_words(trial))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_is_killed_during_a_save(campaigns: Campaigns) -> None:
    passes(campaigns(2, LARGER, "train.steps=40"), "kill-during-save")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", sorted({drill.name for drill in DRILLS} - {*ELSEWHERE, *BY_ROOT, *ASKED_FOR}))
def test_a_drill(name: str, campaigns: Campaigns) -> None:
    passes(campaigns(3 if name in WITH_THREE else 2), name)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ASKED_FOR)
def test_a_drill_of_a_notice(name: str, campaigns: Campaigns) -> None:
    passes(campaigns(2, "train.steps=250"), name)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", ENGINE_DRILLS)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_drill_with_another_engine(engine: str, name: str, campaigns: Campaigns) -> None:
    passes(campaigns(2, f"train.steps={ENGINE_DRILLS[name]}", ENGINES[engine]), name)


@pytest.mark.system
@pytest.mark.timeout(300)
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", BY_ROOT)
def test_a_drill_that_only_root_can_do(name: str, campaigns: Campaigns) -> None:
    assert os.geteuid() == 0, "needs root"
    passes(campaigns(3), name)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_drill_with_several_workers_on_a_node(tmp_path: Path) -> None:
    passes(
        DrillRunner(DrillOptions(size=GangSize(2, 2), trials=1, slack=SLACK, words=(SMALL,)), tmp_path, print),
        "worker-kill",
    )


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_faults_at_random_times_end_in_the_state_of_the_undisturbed_run(tmp_path: Path) -> None:
    seconds, words = (RANDOM_SECONDS["full"], ()) if in_full() else (RANDOM_SECONDS["sample"], (SMALL,))
    plan = DrillOptions(size=GangSize(3, 1), trials=1, slack=SLACK, seconds=seconds, words=words)
    passes(DrillRunner(plan, tmp_path, print), "random")
