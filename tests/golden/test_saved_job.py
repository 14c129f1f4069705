"""A job that commit da0b707 saved continues as it would have continued there."""

import shutil
from pathlib import Path

import pytest

from convoy.job.events.log import read_events
from convoy.job.events.registry import StepDone
from convoy.job.record import job_store
from tests.flows.places import Place
from tests.golden.records import JOBS

JOB = "old"
SAVED_AT = 20

LOSSES = (3.8286405, 3.7818794, 3.7879155, 3.7564769, 3.7642961, 3.7624311, 3.7292920, 3.7354438, 3.6984937, 3.7108569)
"""Of steps 21 to 30, as da0b707 took them in a run that was not interrupted."""

OVERRIDES = (
    "model.d_model=16 model.n_layers=1 model.n_heads=2 model.vocab_size=64 model.max_sequence_length=32 "
    "data.sequence_length=32 data.corpus.tokens=20000 data.corpus.vocab_size=64 checkpoint.export_model=false "
    "train.param_dtype=fp32 train.steps=30 schedule.decay_steps=40 report.card_refresh_seconds=60"
)


@pytest.mark.slow
def test_a_job_saved_by_an_older_version_continues_with_equal_losses(tmp_path: Path) -> None:
    place = Place(tmp_path)
    for name in ("_data", JOB):
        shutil.copytree(JOBS / name, place.root / name)
    done = place.flow("run", "--job", JOB, overrides=OVERRIDES)
    assert done.returncode == 0, done.stdout + done.stderr
    events = [e for e in read_events(job_store(str(place.root), JOB)) if isinstance(e, StepDone) and e.step > SAVED_AT]
    assert [e.step for e in events] == list(range(SAVED_AT + 1, SAVED_AT + 1 + len(LOSSES)))
    assert [e.loss for e in events] == pytest.approx(LOSSES, rel=1e-5)
