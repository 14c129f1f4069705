"""What the trials of a campaign are compared with, without a gang."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from convoy.config.run import RunConfig
from convoy.drills import runner
from convoy.drills.fault import DrillOptions, GangSize
from convoy.drills.faults import drill_named
from convoy.drills.result import TrialResult
from convoy.drills.runner import DrillRunner
from convoy.drills.trial import State

CONFIG = RunConfig()


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Jobs of the undisturbed runs that were made; no gang is formed."""
    jobs: list[str] = []

    def trial(fault: Any, plan: DrillOptions, job: str, root: Path, undisturbed: Callable[..., State]) -> Any:
        undisturbed(CONFIG, plan.size)
        return TrialResult(ok=True), None

    def undisturbed(fault: Any, plan: DrillOptions, config: RunConfig, root: Path, job: str) -> State:
        jobs.append(job)
        return {"weight": "digest"}

    monkeypatch.setattr(runner, "run_trial", trial)
    monkeypatch.setattr(runner, "run_undisturbed", undisturbed)
    return jobs


def a_campaign(folder: Path, nodes: int, states: dict[str, State] | None = None) -> DrillRunner:
    return DrillRunner(DrillOptions(size=GangSize(nodes, 1), trials=2), folder, states=states)


def test_an_undisturbed_run_is_made_once(made: list[str], tmp_path: Path) -> None:
    a_campaign(tmp_path, 2).run_drill(drill_named("drill", "worker-kill"))
    assert made == ["undisturbed-0"]


def test_campaigns_may_share_it_where_their_gangs_are_alike(made: list[str], tmp_path: Path) -> None:
    states: dict[str, State] = {}
    for number, nodes in enumerate((2, 2, 3)):
        a_campaign(tmp_path / str(number), nodes, states).run_drill(drill_named("drill", "worker-kill"))
    assert len(made) == 2
    a_campaign(tmp_path / "apart", 2).run_drill(drill_named("drill", "worker-kill"))
    assert len(made) == 3
