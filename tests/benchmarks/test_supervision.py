import json
import subprocess
import sys
from pathlib import Path

import pytest
from supervision import LIMIT, Unwatched, summarise, table

from convoy.gang.workers.board import Marker
from gang import Block, of_gang
from tests.benchmarks import FOLDER

TINY = (
    "data.corpus.kind=synthetic data.corpus.vocab_size=256 data.sequence_length=32"
    " model.vocab_size=256 model.n_layers=1 model.d_model=32 model.n_heads=1"
)


def test_cpu_seconds_of_the_ranks_add_up_and_the_slowest_rank_sets_the_time() -> None:
    rank0, rank1 = (Block(0.3, 0.5), Block(0.2, 0.4)), (Block(0.4, 0.6), Block(0.1, 0.3))
    ((watched, plain),) = of_gang([[rank0], [rank1]])
    assert (watched.cpu_seconds, watched.wall_seconds) == (pytest.approx(0.7), 0.6)
    assert (plain.cpu_seconds, plain.wall_seconds) == (pytest.approx(0.3), 0.4)


@pytest.mark.parametrize(("watched", "verdict"), [(0.6 * LIMIT - 0.001, "met"), (0.6 * LIMIT + 0.001, "NOT MET")])
def test_the_verdict_is_on_the_cpu_of_ranks_and_agents_together(watched: float, verdict: str) -> None:
    told = summarise([(Block(watched, 9.0), Block(0.6, 0.5))] * 3, [[0.002] * 3, [0.003] * 3])
    assert told["cpu_seconds_per_step"]["agents"] == pytest.approx(0.005)
    assert any(line.endswith(f": {verdict}") for line in table(told))


def test_the_loop_that_is_not_watched_has_nothing_of_the_marking() -> None:
    marks = {
        name
        for name in vars(Marker)
        if not name.startswith("_") and name not in ("order", "answer", "set_polls_orders", "away", "set_exit_code")
    }
    assert {name for name in vars(Unwatched) if not name.startswith("_")} == marks - {"save_done", "beat"}


@pytest.mark.slow
@pytest.mark.sampled(2)
def test_a_watched_gang_is_measured_beside_one_that_is_not(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    script = [sys.executable, str(FOLDER / "supervision.py"), "--pairs", "2", "--steps", "5"]
    done = subprocess.run([*script, "--set", TINY, "--out", str(out)], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: of so small a step the agents take much
    told = json.loads(out.read_text())
    assert told["cpu_seconds_per_step"]["agents"] > 0
    assert len(told["raw"]) == 2
