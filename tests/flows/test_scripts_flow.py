"""`flows/examples/scripts_flow.py`, run by Metaflow's Runner."""

import sys
from pathlib import Path

import pytest

from convoy.job.events.log import read_events
from convoy.job.events.registry import GenerationStarted
from convoy.job.record import job_store
from tests.flows.places import REPOSITORY, Place

FLOW = REPOSITORY / "flows" / "examples" / "scripts_flow.py"


@pytest.mark.slow
def test_it_runs_a_script_of_its_folder_as_a_gang_of_two_with_the_script_s_arguments(tmp_path: Path) -> None:
    """Lightning alone needs an argument to know of the second node."""
    place = Place(tmp_path)
    program = (
        f"from metaflow import Runner\n"
        f"with Runner('{FLOW}', show_output=False).run(script='train_lightning_plain.py') as running:\n"
        f"    print(running.status, running.run.id, running.stderr)"
    )
    done = place.run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    status, run, *_ = done.stdout.split()
    assert status == "successful", done.stdout
    job = f"ScriptsFlow-{run}-train"
    started = [e for e in read_events(job_store(str(place.root), job)) if isinstance(e, GenerationStarted)]
    assert sorted((e.generation, e.node) for e in started) == [(1, 0), (1, 1)]
    assert (tmp_path / "lightning" / "autoencoder.pt").exists()
