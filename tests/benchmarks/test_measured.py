import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from measured import at_least_fewest, cpu_seconds, cpu_seconds_below, percentiles, ratio, write_record


def test_a_ratio_has_the_median_or_mean_and_an_interval_around_it() -> None:
    pairs = [(1.0, 2.0)] * 5 + [(4.0, 2.0)]
    assert ratio(pairs)["ratio"] == 0.5
    mean = ratio(pairs, "mean")
    assert mean["ratio"] == 0.75
    assert mean["low"] < mean["ratio"] < mean["high"]
    assert mean["pairs"] == 6


def test_fewer_pairs_than_an_interval_needs_are_refused() -> None:
    assert at_least_fewest("6") == 6
    with pytest.raises(argparse.ArgumentTypeError, match="at least 6"):
        at_least_fewest("5")


def test_percentiles() -> None:
    assert percentiles([float(i) for i in range(11)]) == {"p50": 5.0, "p90": 9.0, "max": 10.0}
    assert percentiles([3.0]) == {"p50": 3.0, "p90": 3.0, "max": 3.0}


def test_the_cpu_time_of_a_started_process_is_measured_until_it_ends() -> None:
    burn = "import sys, time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\nsys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"done\n"
    assert 0.2 <= cpu_seconds(child.pid) < 2.0
    assert cpu_seconds_below() >= 0.2
    child.communicate()
    assert cpu_seconds(child.pid) == 0.0


def test_ones_own_cpu_time_is_that_of_the_process_clock() -> None:
    assert cpu_seconds(os.getpid()) == pytest.approx(time.process_time(), abs=0.05)


@pytest.mark.processes
def test_a_record_has_commit_hardware_versions_and_command(tmp_path: Path) -> None:
    write_record(tmp_path / "record.json", {"options": {"out": tmp_path}})
    record = json.loads((tmp_path / "record.json").read_text())
    assert len(record["commit"].removesuffix("+changes")) == 40
    assert record["hardware"]["cores"] == os.cpu_count()
    assert record["versions"]["torch"][0].isdigit()
    assert record["command"] == " ".join(sys.argv)
    assert record["options"] == {"out": str(tmp_path)}
