"""The ways to start the flow: dry run, from other folders, with a bare environment; what Config words do."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.forked import Forked
from tests.flows.places import FLOW, REPOSITORY, SMOKE, Place, flow_command, own_lines


def test_a_dry_run_prints_the_configuration_as_json_and_on_stderr_what_would_be_launched(
    forked: Forked, tmp_path: Path
) -> None:
    place = Place(tmp_path)
    done = forked.run(place, FLOW, *flow_command("run", "--dry-run", overrides="train.steps=200 model.n_layers=3")[2:])
    assert done.returncode == 0, done.stderr
    tree = json.loads(done.stdout)
    assert (tree["train"]["steps"], tree["model"]["n_layers"], tree["root"]) == (200, 3, str(place.root))
    assert place.runs() == []
    assert not place.root.exists()
    told = [" ".join(line.split()) for line in own_lines(done.stderr)]
    assert "backend: local, 2 processes on this host" in told
    assert "batch: 8 sequences of 64 = 512 tokens a step, 200 steps" in told
    assert told.index("Plan:") < told.index(next(x for x in told if "memory: " in x))


DRY_RUNS = re.findall(r"^python (flows/.* run --dry-run)", (REPOSITORY / "README.md").read_text(), re.MULTILINE)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("words", DRY_RUNS)
def test_the_readme_s_dry_runs_work_as_written_without_extras_and_account(words: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules |= dict.fromkeys(['kubernetes', 'transformers'])"
    )
    search_path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {"PYTHONPATH": search_path, "HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    command = ["env", "-C", REPOSITORY, "-u", "AWS_ACCESS_KEY_ID", sys.executable, *words.split()]
    done = Place(tmp_path, variables).run(*command)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    assert "\n  [ ] METAFLOW_DEFAULT_DATASTORE = local: must be s3 with cluster.backend = " in done.stderr


def test_an_override_that_is_right_only_on_top_of_the_base_file_is_let_through(forked: Forked, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("text")
    (tmp_path / "mine.yaml").write_text(
        "data: {corpus: {kind: files, path: /nowhere}, tokenizer: {kind: bytes}}\nmodel: {vocab_size: 257}\n"
    )
    command = flow_command("run", "--dry-run", overrides=f"data.corpus.path={tmp_path}/corpus data.corpus.format=text")
    command[command.index(str(SMOKE))] = "mine.yaml"
    done = forked.run(Place(tmp_path), FLOW, *command[2:])
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["data"]["corpus"]["path"] == f"{tmp_path}/corpus"


def test_it_starts_without_the_environment_on_path_and_without_a_user_s_name(tmp_path: Path) -> None:
    """Metaflow takes no name for root's, and starts the gang's other tasks with the `python` of PATH."""
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "CONVOY_ROOT": str(tmp_path / "jobs")}
    bare |= {key: os.environ[key] for key in ("PYTHONPATH",) if key in os.environ}
    done = subprocess.run([*flow_command("run", "--dry-run")], cwd=tmp_path, env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["train"]["steps"] == 20
