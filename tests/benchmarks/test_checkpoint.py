import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from checkpoint import EXTRA, LIMITS, Case, Turn, _gang, summarise, table
from tests.benchmarks import FOLDER

TURN = Turn(
    plain_step=0.3,
    call=0.01,
    extra_step=0.02,
    extra_window=0.05,
    committed_training=0.7,
    staged=0.1,
    committed=0.6,
    restore=0.4,
    restore_warm=0.2,
    cpu_save_training=0.1,
    cpu_save_writer=0.2,
    cpu_restore=0.3,
)
CASE = Case(500, 1, 6)


def test_a_case_is_read_from_its_name() -> None:
    assert Case.parsed("512x2:24") == Case(512, 2, 24)
    with pytest.raises(Exception, match="must be MiBxRANKS:ROUNDS"):
        Case.parsed("512")


def test_a_gang_is_as_slow_as_its_slowest_rank_and_uses_the_cpu_of_all() -> None:
    gang = _gang([TURN, replace(TURN, committed=0.9, cpu_save_writer=0.4)])
    assert gang.committed == 0.9
    assert gang.call == TURN.call
    assert gang.cpu_save_writer == pytest.approx(0.6)


def test_a_summary_tells_rates_cpu_per_gigabyte_and_whether_the_promises_were_met() -> None:
    turns = {
        "convoy": [TURN] * 6,
        "raw": [replace(TURN, committed=0.5)] * 6,
        "dcp_sync": [replace(TURN, restore=0.5)] * 6,
    }
    told = summarise(CASE, 2 * 10**9, turns, [{"extra_step": 0.007, "extra_window": -0.003}] * 6)
    convoy = told["savers"]["convoy"]
    assert convoy["gb_per_second"]["restore"] == pytest.approx(5.0)
    assert convoy["cpu_seconds_per_gb"]["save_writer"] == pytest.approx(0.1)
    assert told["convoy_to"]["raw"]["committed"]["ratio"] == pytest.approx(1.2)
    assert {what: found["met"] for what, found in told["acceptance"].items()} == dict.fromkeys(LIMITS, True)
    assert told["acceptance"]["extra_step"]["low"] == told["acceptance"]["extra_step"]["high"] == TURN.extra_step
    assert any("10/10/10" in line for line in table(told))
    assert "steps alone, with nothing saved: extra_step 7/7/7, extra_window -3/-3/-3" in table(told)


@pytest.mark.parametrize(
    ("what", "worse"),
    [
        ("call", replace(TURN, call=0.016)),
        ("extra_step", replace(TURN, extra_step=0.026)),
        ("committed_to_raw", replace(TURN, committed=0.63)),
        ("restore_to_dcp", replace(TURN, restore=0.51)),
    ],
)
def test_a_promise_that_was_not_kept_is_told(what: str, worse: Turn) -> None:
    others = {"raw": [replace(TURN, committed=0.5)] * 6, "dcp_sync": [replace(TURN, restore=0.5)] * 6}
    told = summarise(CASE, 10**9, {"convoy": [worse] * 6, **others}, [dict.fromkeys(EXTRA, 0.0)] * 6)
    assert [name for name, found in told["acceptance"].items() if not found["met"]] == [what]
    assert any(line.startswith(what) and line.endswith("NOT MET") for line in table(told))


@pytest.mark.slow
@pytest.mark.sampled(2)
def test_savers_are_measured_over_two_ranks_and_give_back_what_they_saved(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    savers = ["convoy", "dcp_sync", "raw"]
    script = [sys.executable, str(FOLDER / "checkpoint.py"), "--cases", "1x2:6", "--tokens", "4", "--savers", *savers]
    done = subprocess.run([*script, "--folder", str(tmp_path), "--out", str(out)], capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: too slow, which so small a state may be
    (case,) = json.loads(out.read_text())["cases"]
    assert case["case"] == asdict(Case(1, 2, 6))
    assert case["state_bytes"] == pytest.approx(2 * 2**20, rel=0.1)
    assert set(case["savers"]) == set(savers)
    assert len(case["raw"]["steps_alone"]) == 6
    for told in case["savers"].values():
        assert told["seconds"]["committed"]["p50"] > 0
        assert told["cpu_seconds_per_gb"]["save_training"] > 0
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
