import json
import subprocess
import sys
from pathlib import Path

import pytest
from blocks import Block, of_gang
from overhead import COMPARISONS, LIMIT, summarise, table
from supervision import Unwatched

from convoy.gang.workers.board import Marker
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
    compared = COMPARISONS["supervision"]
    result = summarise(compared, [(Block(watched, 9.0), Block(0.6, 0.5))] * 6, [[0.002] * 6, [0.003] * 6])
    assert result["cpu_seconds_per_step"]["agents"] == pytest.approx(0.005)
    assert any(line.endswith(f": {verdict}") for line in table(compared, result))


def test_the_wall_ratio_of_the_loops_is_that_of_their_speeds() -> None:
    result = summarise(COMPARISONS["loop"], [(Block(1.0, 5.0), Block(1.0, 4.0))] * 6, [(), ()])
    assert result["wall_ratio"]["ratio"] == 0.8
    assert set(result["cpu_seconds_per_step"]) == {"ours", "bare"}


def test_the_loop_that_is_not_watched_has_nothing_of_the_marking() -> None:
    others = {
        "current_order",
        "acknowledge",
        "set_polls_orders",
        "unusable_tiers",
        "set_exit_code",
        "save_done",
        "beat",
    }
    marks = {name for name in vars(Marker) if not name.startswith("_")}
    assert {name for name in vars(Unwatched) if not name.startswith("_")} == marks - others


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_two_loops_are_compared_over_two_ranks(comparison: str, tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    script = [sys.executable, str(FOLDER / "overhead.py"), comparison, "--pairs", "6", "--steps", "5"]
    done = subprocess.run([*script, "--set", TINY, "--out", str(out)], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: of so small a step the overhead is a large part
    result = json.loads(out.read_text())
    assert all(seconds > 0 for seconds in result["cpu_seconds_per_step"].values())
    assert ("agents" in result["cpu_seconds_per_step"]) == (comparison != "loop")
    assert len(result["raw"]) == 6
    assert ("apart" in result) == (comparison == "watching")
    if comparison == "watching":  # which fails if a tracker lacks a step, or a message is missing
        assert min(result["apart"]["start_cpu_seconds"], result["apart"]["end_cpu_seconds"]) > 0
