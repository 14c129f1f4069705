"""The smoke flow with everything on S3: Metaflow's datastore and the job."""

import json
import subprocess
from pathlib import Path

import pytest

from convoy.job.events.log import read_events
from convoy.job.events.registry import CheckpointSaved, GenerationEnded, StepDone
from convoy.job.lineage import CommitRef, read_history
from convoy.job.record import job_store
from convoy.storage import Store
from tests.flows.places import Place
from tests.flows.runs import CARD_AT_THE_END

JOB = "in-the-cloud"


@pytest.fixture
def place(s3_uri: str, tmp_path: Path) -> Place:
    datastore = {"METAFLOW_DEFAULT_DATASTORE": "s3", "METAFLOW_DATASTORE_SYSROOT_S3": f"{s3_uri}/metaflow"}
    return Place(tmp_path, {**datastore, "CONVOY_ROOT": f"{s3_uri}/jobs"})


def steps(store: Store, generation: int) -> list[int]:
    return [e.step for e in read_events(store) if isinstance(e, StepDone) and e.generation == generation]


def run(place: Place, job: str, overrides: str = "") -> "subprocess.CompletedProcess[str]":
    done = place.flow("run", "--job", job, overrides=f"{CARD_AT_THE_END} {overrides}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_a_job_on_s3_trains_continues_and_can_be_looked_at(place: Place, s3_uri: str) -> None:
    done = run(place, JOB)
    store = job_store(f"{s3_uri}/jobs", JOB)
    assert f"checkpoint {s3_uri}/jobs/{JOB}/commits/000001-000000020.json" in done.stdout
    assert read_history(store).commits == {CommitRef(generation=1, step=10), CommitRef(generation=1, step=20)}
    assert steps(store, 1) == list(range(1, 21))
    saved = [e for e in read_events(store) if isinstance(e, CheckpointSaved)]
    assert all(e.bytes > 100_000 for e in saved)
    assert {e.node for e in read_events(store) if isinstance(e, GenerationEnded)} == {0, 1}
    assert store.sizes("model/000001-000000020/model.safetensors")

    # A local datastore with the job on S3 works as well.
    place = Place(place.folder, {"CONVOY_ROOT": f"{s3_uri}/jobs"})
    run(place, JOB, overrides="train.steps=25 checkpoint.export_model=false")
    assert read_history(store).generations[2].parent == CommitRef(generation=1, step=20)
    assert steps(store, 2) == [21, 22, 23, 24, 25]

    again = run(place, JOB, overrides="train.steps=25")
    assert again.stdout.startswith(f"job {JOB} is finished: 25 steps are done")

    shown = place.convoy("show", JOB, "--json")
    assert (shown.returncode, json.loads(shown.stdout)["step"]) == (0, 25)
    tailed = place.convoy("tail", JOB)
    assert (tailed.returncode, sum("  step " in line for line in tailed.stdout.splitlines())) == (0, 25)
    logged = place.convoy("logs", JOB)
    assert [line.split()[:3] for line in logged.stdout.splitlines()[1:]] == [
        [str(generation), str(rank), str(rank)] for generation in (1, 2) for rank in (0, 1)
    ]
    assert place.convoy("logs", JOB, "--rank", "1", "--follow").returncode == 0
    exported = place.convoy("export", JOB, "--to", "hf", place.folder / "hf")
    assert exported.returncode == 0, exported.stderr
    assert (place.folder / "hf" / "model.safetensors").exists()
