"""The commands of the guide to the network run as written there, and those for a cluster have options that exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from convoy.cli.main import main
from tests.network.nccl.written import Job
from tests.network.results.nccl_output import Output, text_of_2_19

GUIDE = Path(__file__).parent.parent / "docs" / "guides" / "network.md"

LINES = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", GUIDE.read_text(), re.M | re.S)
    for line in block.splitlines()
    if "convoy net" in line
]

HERE = [line for line in LINES if line.startswith("convoy net") and "--lab" not in line]

ELSEWHERE = [line for line in LINES if line not in HERE]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the files that the guide's commands read."""
    folder = tmp_path_factory.mktemp("guide")
    (folder / "rank0.log").write_text("\n".join(Job().lines()))
    (folder / "all_reduce.txt").write_text(text_of_2_19(Output()))
    return folder


@pytest.mark.parametrize("line", HERE)
def test_a_command_of_the_guide_runs(line: str, folder: Path) -> None:
    command = [sys.executable, "-m", *shlex.split(line)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("line", ELSEWHERE)
def test_a_command_for_other_machines_has_options_that_exist(line: str) -> None:
    words = shlex.split(line[line.index("convoy net") :])[1:]
    done = CliRunner().invoke(main, [*words, "--help"])
    assert done.exit_code == 0, done.output
    assert [word for word in words if word.startswith("--") and word not in done.output] == []


def test_the_guide_has_commands_of_both_kinds() -> None:
    assert len(HERE) >= 5
    assert len(ELSEWHERE) >= 4
