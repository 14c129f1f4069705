"""Runs that the tests of this folder share."""

from collections.abc import Iterator

import pytest

from tests.flows.completed import Completed, completed_job
from tests.flows.forked import Forked, forking
from tests.flows.runs import (
    Interrupted,
    Restarted,
    Run,
    Watched,
    continued_run,
    interrupted_run,
    node0_lost_run,
    restarted_run,
    resumed_run,
    smoke_run,
)


@pytest.fixture(scope="session")
def forked() -> Iterator[Forked]:
    with forking() as processes:
        yield processes


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
    """A run of 120 steps that lost a node after step 20."""
    return interrupted_run(tmp_path_factory.mktemp("interrupted"))


@pytest.fixture(scope="session")
def resumed(interrupted: Interrupted) -> Run:
    """That run resumed; it lost a node again after step 40, was tried again, and finished."""
    return resumed_run(interrupted.run)


@pytest.fixture(scope="session")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Restarted:
    """A run of 120 steps one of whose workers was killed after step 20."""
    return restarted_run(tmp_path_factory.mktemp("restarted"))


@pytest.fixture(scope="session")
def headless(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """A run of 120 steps whose first node was killed after step 20, with one retry."""
    return node0_lost_run(tmp_path_factory.mktemp("headless"))


@pytest.fixture(scope="session")
def completed(tmp_path_factory: pytest.TempPathFactory) -> Completed:
    """A job that `convoy run` brought to its end, though it was preempted once and `convoy run` itself was ended."""
    return completed_job(tmp_path_factory.mktemp("completed"))
