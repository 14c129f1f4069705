"""`convoy net bench` on this host: as a gang of its own, and as ranks that torchrun started."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from convoy.benchmark.results.files import read_cases
from convoy.cli.main import main

QUICK = ("--sizes", "64:16K:16", "--rounds", "6")


def convoy(*words: str) -> Result:
    return CliRunner().invoke(main, ["net", "bench", *words], prog_name="convoy")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The cases of a gang of two ranks, and what the command printed as JSON."""
    folder = tmp_path_factory.mktemp("bench") / "cases"
    command = [sys.executable, "-m", "convoy", "net", "bench", "--op", "all_reduce", "--op", "pairs", *QUICK]
    done = subprocess.run([*command, "--output", str(folder), "--json"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def test_every_algorithm_is_measured_at_every_size_and_none_is_wrong(measured: tuple[Path, dict[str, Any]]) -> None:
    (collective,) = measured[1]["collectives"]
    assert collective["operation"] == "all_reduce"
    assert collective["hosts"] == 1
    assert collective["bound"] is None
    names = {case["name"] for case in collective["algorithms"]}
    assert names >= {"backend", "ring", "recursive doubling", "halving-doubling", "binary tree", "direct exchange"}
    for case in collective["algorithms"]:
        assert [each["size"] for each in case["sizes"]] == [64, 1024, 16384]
        assert [each["wrong"] for each in case["sizes"]] == [0, 0, 0]


def test_pairs_within_the_host_choose_an_algorithm(measured: tuple[Path, dict[str, Any]]) -> None:
    (pair,) = measured[1]["pairs"]["pairs"]
    assert (pair["first"], pair["second"], pair["wrong"]) == (0, 1, 0)
    assert pair["latency"]["estimate"] > 0
    assert pair["forth"]["estimate"] > 0
    (collective,) = measured[1]["collectives"]
    assert len(collective["chosen"]) == 3
    assert all(each["over_best"] >= 1 for each in collective["chosen"])


def test_cases_say_where_they_come_from(measured: tuple[Path, dict[str, Any]]) -> None:
    cases = read_cases(measured[0])
    assert {case.suite for case in cases} == {"network"}
    assert all(case.tokens_per_step == 0 and case.hardware.ranks == 2 and not case.lab for case in cases)
    assert all("net bench" in case.provenance.command for case in cases)


def test_ranks_of_torchrun_measure_together_and_the_first_prints(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29617"]
    command = [*torchrun, "-m", "convoy", "net", "bench", "--op", "all_gather", *QUICK, "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    (collective,) = json.loads(done.stdout)["collectives"]
    assert (collective["operation"], collective["ranks"], collective["hosts"]) == ("all_gather", 2, 1)
    assert done.stderr.count("network-all_gather: groups: 0 of 1 done") == 1


def test_ranks_that_are_to_measure_different_things_end_before_anything_hangs(tmp_path: Path) -> None:
    script = """
import os, sys
from convoy.cli.main import main
main(["net", "bench", "--op", "all_reduce", "--rounds", "6", "--sizes", "64:" + os.environ["RANK"] + "K"
      if os.environ["RANK"] != "0" else "64:64"])
"""
    (tmp_path / "apart.py").write_text(script)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29618"]
    done = subprocess.run([*torchrun, "apart.py"], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode != 0
    assert "rank 1 is to measure something else than rank 0: start all with the same options" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--op", "all_to_one"), "--op all_to_one: must be one of all_reduce,"),
        (("--op", "pair"), "scatter, pairs, rails, one-sided, transports"),
        (("--sizes", "8"), "network.sizes = 8: must be START:END"),
        (("--dtype", "fp8"), "network.dtype = fp8: must be one of"),
        (("--link-gbps", "0"), "network.link_gbps = 0"),
        (("--lab", "4 hosts, quick"), "--lab 'quick': must be among"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], message: str) -> None:
    done = convoy(*words)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_launcher_of_one_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "29500")
    done = convoy()
    assert (done.exit_code, done.stderr) == (2, "convoy: the launcher started 1 rank: must be 2 or more\n")


def test_a_launcher_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "8"), ("SIZE", "16"), ("LOCAL_RANK", "0"), ("LOCAL_SIZE", "8")):
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    done = convoy()
    assert done.exit_code == 2
    assert "MASTER_ADDR = not set: must be the address of rank 0's host" in done.stderr
