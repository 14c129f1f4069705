import json
import subprocess
import sys
from pathlib import Path

import pytest
from checkpointed_run import LIMIT, summarise, table

from gang import Block, of_gang
from tests.benchmarks import FOLDER

TINY = (
    "data.corpus.kind=synthetic data.corpus.vocab_size=256 data.sequence_length=32"
    " model.vocab_size=256 model.n_layers=1 model.d_model=32 model.n_heads=1"
)


def test_cpu_seconds_of_the_ranks_add_up_and_the_slowest_tells_the_time() -> None:
    rank0, rank1 = (Block(0.3, 0.5), Block(0.2, 0.4)), (Block(0.4, 0.6), Block(0.1, 0.3))
    ((saving, plain),) = of_gang([[rank0], [rank1]])
    assert (saving.cpu_seconds, saving.wall_seconds) == (pytest.approx(0.7), 0.6)
    assert (plain.cpu_seconds, plain.wall_seconds) == (pytest.approx(0.3), 0.4)


@pytest.mark.parametrize(("saving", "verdict"), [(0.6 * LIMIT - 0.001, "met"), (0.6 * LIMIT + 0.001, "NOT MET")])
def test_the_verdict_is_on_the_training_processes_cpu_alone(saving: float, verdict: str) -> None:
    pairs = [(Block(saving, 9.0), Block(0.6, 0.5))] * 3
    ranks = [{"commits": 6, "writer_cpu_seconds": 15.0}] * 2
    told = summarise(pairs, ranks, steps=10)
    assert told["steps_of_each"] == 30
    assert told["cpu_seconds_per_step"]["writers"] == 1.0
    assert any(line.endswith(f": {verdict}") for line in table(told))


@pytest.mark.slow
@pytest.mark.sampled(2)
def test_a_run_that_saves_is_measured_beside_one_that_does_not(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    script = [sys.executable, str(FOLDER / "checkpointed_run.py"), "--pairs", "2", "--steps", "25"]
    done = subprocess.run([*script, "--set", TINY, "--out", str(out)], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: of so small a step a save takes much
    told = json.loads(out.read_text())
    assert told["steps_of_each"] == 50
    assert told["commits"] >= 1
    assert told["cpu_seconds_per_step"]["writers"] > 0
    assert len(told["raw"]) == 2
