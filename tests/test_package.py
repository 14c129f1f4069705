"""What an installed package has without the repository: presets, flows, `convoy init`, `python -m convoy`."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import setuptools
from click.testing import CliRunner
from setuptools.dist import Distribution

from convoy.cli.main import main
from convoy.launch.parse import expand_argv_presets
from tests.flows.places import REPOSITORY, Place


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`convoy` as a wheel installs it. The extension stays the repository's: Metaflow refuses a second copy."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(REPOSITORY / "platform" / "convoy", site / "convoy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setuptools, "setup", lambda **_: None)
        patch.chdir(REPOSITORY)
        build = runpy.run_path("setup.py")["BuildWithShipped"](Distribution())
        build.packages, build.build_lib = [], str(site)
        build.ensure_finalized()
        build.run()
    return site


@pytest.fixture
def installed(site: Path, tmp_path: Path) -> Place:
    return Place(tmp_path / "empty", {"PYTHONPATH": str(site), "AWS_EC2_METADATA_DISABLED": "true"})


def test_the_wheel_has_the_presets_and_flows_of_the_repository(site: Path) -> None:
    for folder in ("configs", "flows"):
        tracked = files_below(REPOSITORY / folder)
        ours = {name: text for name, text in tracked.items() if name.endswith((".yaml", ".py", ".json"))}
        assert files_below(site / "convoy" / "shipped" / folder) == ours


@pytest.fixture(scope="module")
def python_with_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter of its own, that has the wheel and nothing else."""
    source, place = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for folder in ("platform", "configs", "flows"):
        shutil.copytree(
            REPOSITORY / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
        )
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        if (REPOSITORY / name).exists():
            shutil.copy(REPOSITORY / name, source)
    options = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(place)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", *options, str(source)], check=True)
    venv.create(place / "venv")
    (wheel,) = place.glob("*.whl")
    (packages,) = (place / "venv" / "lib").glob("python*/site-packages")
    shutil.unpack_archive(wheel, packages, "zip")
    return place / "venv" / "bin" / "python"


SCRIPT = """
from convoy import script
from convoy.config.loader import resolve
from convoy.config.run import RunConfig

config: RunConfig = resolve({}, {"train": {"steps": 3}})
for step in range(config.train.steps):
    script.progress(%s)
    if script.notice() == "end":
        break
uri: str = script.checkpoints_uri()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("step", "complaints"), [("step + 1", []), ("str(step)", ["arg-type"])])
def test_a_script_is_checked_against_the_types_of_the_installed_wheel(
    python_with_wheel: Path, step: str, complaints: list[str], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(SCRIPT % step)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--python-executable", python_with_wheel]
    checked = subprocess.run([*command, "own.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert re.findall(r"own\.py:\d+: error: .*\[(.*)\]", checked.stdout) == complaints, checked.stdout
    assert checked.returncode == bool(complaints)


def test_init_writes_both_flows_to_edit_and_overwrites_nothing(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["init", str(tmp_path / "mine")])
    assert done.exit_code == 0, done.output
    written = files_below(tmp_path / "mine")
    assert sorted(written) == [
        "configs/bench/default.yaml", "configs/train/default.yaml", "flows/benchmark_flow.py", "flows/train_flow.py",
    ]  # fmt: skip
    kept = tmp_path / "mine" / "configs" / "train" / "default.yaml"
    kept.write_text("train: {steps: 77}\n")
    for name in written.keys() - {"configs/train/default.yaml"}:
        (tmp_path / "mine" / name).unlink()
    again = CliRunner().invoke(main, ["init", str(tmp_path / "mine")])
    assert again.exit_code == 2
    assert again.stderr == f"convoy: init: {kept}: already there; nothing was written\n"
    assert files_below(tmp_path / "mine") == {"configs/train/default.yaml": b"train: {steps: 77}\n"}


def test_the_flow_that_init_writes_reads_the_configuration_beside_it_and_presets_by_name(installed: Place) -> None:
    assert installed.run(sys.executable, "-m", "convoy", "init").returncode == 0
    (installed.folder / "configs" / "train" / "default.yaml").write_text("train: {steps: 77}\n")
    own = installed.run(sys.executable, "flows/train_flow.py", "run", "--dry-run")
    assert own.returncode == 0, own.stderr
    assert json.loads(own.stdout)["train"]["steps"] == 77
    named = installed.run(sys.executable, "flows/train_flow.py", "--config", "run", "gpt-7b-p4d", "run", "--dry-run")
    assert named.returncode == 0, named.stderr
    assert json.loads(named.stdout)["model"]["name"] == "gpt-7b"


def test_a_name_that_is_neither_file_nor_preset_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmark_flow.py", "--config", "bench", "p4", "run"])
    with pytest.raises(SystemExit, match="2"):
        expand_argv_presets("bench", "bench")
    told = capsys.readouterr().err
    assert re.fullmatch(r"convoy: --config bench p4: no such file, and no preset of .*configs/bench; .*p4d.*\n", told)


@pytest.mark.parametrize("flow", ["train_flow.py", "benchmark_flow.py"])
def test_a_flow_without_its_environment_says_how_to_get_it(flow: str) -> None:
    command = [sys.executable, "-S", "-E", REPOSITORY / "flows" / flow, "run"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith(
        f"convoy: {sys.executable} has no metaflow and no convoy: in a clone run `make train`"
    )
    assert len(done.stderr.splitlines()) == 1


def test_the_documented_flow_needs_no_user_name(tmp_path: Path) -> None:
    """As root in a container, of whom Metaflow takes no name."""
    guide = (REPOSITORY / "docs" / "guides" / "own-flow.md").read_text()
    (example,) = re.findall(r"```python\n(from metaflow import FlowSpec, .*?)```", guide, re.S)
    (tmp_path / "my_flow.py").write_text(example)
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    bare |= {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
    command = [sys.executable, "my_flow.py", "check"]
    done = subprocess.run(command, cwd=tmp_path, env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
