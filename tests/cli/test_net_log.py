"""`convoy net log` says what carried a run's traffic, and its exit code whether that is what was required."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from convoy.cli.net_log import log
from tests.network.nccl.written import Carrier, Job


def run(file: Path, job: Job, *words: str) -> Result:
    file.write_text("\n".join(job.lines()) + "\n")
    return CliRunner().invoke(log, [str(file), *words], env={"COLUMNS": "200"})


def test_ranks_that_are_alike_are_one_row(tmp_path: Path) -> None:
    done = run(tmp_path / "log", Job(ranks=32, per_host=8))
    assert done.exit_code == 0
    assert "EFA with GPUDirect" in done.output
    assert "0-31" in done.output
    assert "First cause" not in done.output


def test_a_bad_verdict_comes_with_its_cause_and_fix(tmp_path: Path) -> None:
    done = run(tmp_path / "log", Job(carrier="socket"))
    assert done.exit_code == 0
    assert "Ranks 0-3: TCP" in done.output
    assert "First cause: NCCL found no network plugin" in done.output
    assert ".." not in done.output
    assert "network Socket, 1 NIC, 4 ranks" in done.output
    assert "LD_LIBRARY_PATH" in done.output


def test_json_has_the_worst_verdict_and_each_rank_s(tmp_path: Path) -> None:
    report = json.loads(run(tmp_path / "log", Job(), "--json").stdout)
    assert report["verdict"] == "rdma+gdr"
    assert [(each["rank"], each["verdict"]) for each in report["ranks"]] == [(rank, "rdma+gdr") for rank in range(4)]


@pytest.mark.parametrize(
    ("carrier", "require", "code"),
    [
        ("efa+gdr", "efa", 0),
        ("efa+gdr", "gdr", 0),
        ("efa", "efa", 0),
        ("efa", "gdr", 1),
        ("ib+gdr", "efa", 1),
        ("ib+gdr", "rdma", 0),
        ("socket", "rdma", 1),
        ("libfabric tcp", "efa", 1),
        ("silent", "efa", 1),
    ],
)
def test_the_exit_code_says_whether_what_is_required_is_proven(
    tmp_path: Path, carrier: Carrier, require: str, code: int
) -> None:
    done = run(tmp_path / "log", Job(carrier=carrier), "--require", require)
    assert done.exit_code == code
    assert ("not proven for ranks 0-3" in done.stderr) == bool(code)
