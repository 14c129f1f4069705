import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from checkpoint_s3 import CAP, Turn, summarise, table

from tests.benchmarks import FOLDER

GB = 10**9
TURN = Turn(
    save=10.0,
    restore=10.2,
    cpu_save_training=0.1,
    cpu_save_writer=0.5,
    cpu_restore=0.4,
    requests_save=130,
    requests_restore=125,
)


def test_the_share_of_the_cap_is_of_the_states_bytes_in_the_median_round() -> None:
    told = summarise({"convoy": [TURN, TURN, replace(TURN, save=30.0)]}, GB, {"convoy": [TURN]}, GB)
    assert CAP == 10**8
    assert told["acceptance"]["share_of_cap_save"] == {"found": 1.0, "limit": 0.95, "met": True}
    assert told["acceptance"]["share_of_cap_restore"]["found"] == pytest.approx(10 / 10.2)
    slow = summarise({"convoy": [replace(TURN, save=10.6)]}, GB, {"convoy": [TURN]}, GB)
    assert not slow["acceptance"]["share_of_cap_save"]["met"]
    assert any("NOT MET" in line for line in table(slow))


def test_uncapped_rounds_are_compared_pair_by_pair() -> None:
    uncapped = {"convoy": [TURN] * 3, "raw": [replace(TURN, save=save) for save in (5.0, 8.0, 20.0)]}
    told = summarise({}, GB, uncapped, 2 * GB)
    assert told["convoy_to"]["raw"]["save"]["median_of_pairs"] == pytest.approx(10 / 8)
    assert told["convoy_to"]["raw"]["save"]["pairs"] == 3
    assert told["uncapped"]["convoy"]["requests_per_gb"] == {"save": 65, "restore": 62.5}
    assert told["uncapped"]["convoy"]["cpu_seconds_per_gb"]["save_writer"] == 0.25


@pytest.mark.slow
@pytest.mark.sampled(2)
def test_every_saver_gets_back_what_it_put_through_a_capped_link_and_without(tmp_path: Path) -> None:
    out = tmp_path / "result.json"
    sizes = ["--capped-mib", "18", "--capped-rounds", "1", "--mib", "9", "--pairs", "2", "--savers", "convoy", "raw"]
    script = [sys.executable, str(FOLDER / "checkpoint_s3.py"), *sizes, "--out", str(out)]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: less than the wanted share of the cap
    told = json.loads(out.read_text())
    assert set(told["capped"]) == {"convoy", "raw"}
    for saver in told["capped"].values():
        assert saver["mb_per_second"]["save"] < 120
        assert saver["mb_per_second"]["restore"] < 120
        assert saver["requests_per_gb"]["restore"] * 18 * 2**20 / GB >= 3  # of 8 MiB each
    assert len(told["raw"]["uncapped"]["raw"]) == 2
