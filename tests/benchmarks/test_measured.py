import os
import subprocess
import sys
import time

import pytest
from measured import cpu_seconds, descendants, percentiles, provenance, ratio, ratio_of_medians, spread


def test_a_ratio_of_sums_weighs_long_pairs_more_and_one_of_medians_ignores_outliers() -> None:
    pairs = [(1.0, 2.0), (1.1, 2.2), (100.0, 2.0)]
    assert ratio(pairs)["ratio"] == pytest.approx(102.1 / 6.2)
    assert ratio_of_medians(pairs)["ratio"] == pytest.approx(1.1 / 2.0)


def test_an_interval_holds_the_ratio_and_grows_with_the_noise() -> None:
    steady = ratio_of_medians([(1.0 + i / 1000, 2.0) for i in range(20)])
    noisy = ratio_of_medians([(1.0 + i / 10, 2.0) for i in range(20)])
    assert steady["low"] <= steady["ratio"] <= steady["high"]
    assert noisy["high"] - noisy["low"] > 10 * (steady["high"] - steady["low"])


def test_spread_and_percentiles() -> None:
    values = [float(i) for i in range(11)]
    assert spread(values) == {"median": 5.0, "q1": 2.5, "q3": 7.5}
    assert percentiles(values) == {"p50": 5.0, "p90": 9.0, "max": 10.0}
    assert percentiles([3.0]) == {"p50": 3.0, "p90": 3.0, "max": 3.0}


def test_cpu_time_of_another_process_is_told_and_it_is_found_among_the_descendants() -> None:
    burn = "import sys, time\nwhile time.process_time() < 0.2: pass\nprint('done', flush=True)\nsys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"done\n"
    assert 0.2 <= cpu_seconds(child.pid) < 2.0
    assert child.pid in descendants(os.getpid())
    child.communicate()
    assert cpu_seconds(child.pid) == 0.0


def test_ones_own_cpu_time_is_that_of_the_process_clock() -> None:
    assert cpu_seconds(os.getpid()) == pytest.approx(time.process_time(), abs=0.05)


def test_provenance_names_commit_hardware_and_versions() -> None:
    told = provenance()
    assert len(told["commit"].removesuffix("+changes")) == 40
    assert told["hardware"]["cores"] == os.cpu_count()
    assert told["versions"]["torch"][0].isdigit()
