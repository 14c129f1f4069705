"""Runs that the tests of this folder share."""

import pytest

from tests.flows.runs import Interrupted, Run, continued_run, interrupted_run, resumed_run, smoke_run


@pytest.fixture(scope="session")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A finished run of 20 steps. Not to be changed: go on with `smoke.copied(...)`."""
    run = smoke_run(tmp_path_factory.getbasetemp() / "smoke")
    assert run.done.returncode == 0, run.done.stdout + run.done.stderr
    return run


@pytest.fixture(scope="session")
def continued(smoke: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The smoke job gone on from 20 to 30 steps by a second run."""
    run = continued_run(smoke, tmp_path_factory.mktemp("continued"), steps=30)
    assert run.done.returncode == 0, run.done.stdout + run.done.stderr
    return run


@pytest.fixture(scope="session")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    """A run of 120 steps, killed after step 20."""
    return interrupted_run(tmp_path_factory.mktemp("interrupted"))


@pytest.fixture(scope="session")
def resumed(interrupted: Interrupted) -> Run:
    """That run resumed, killed again after step 40, tried again, and finished."""
    return resumed_run(interrupted.run)
