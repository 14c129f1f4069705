"""What `current.convoy` makes of what a step's body gives it."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.launch.gang.current import CurrentConvoy, _check_seconds, find_entrypoint, gang_config

LOCAL = {"METAFLOW_RUNTIME_ENVIRONMENT": "local"}
REMOTE = {"METAFLOW_RUNTIME_ENVIRONMENT": "kubernetes"}


def test_a_script_is_found_from_the_working_directory_and_then_from_the_flow_s(tmp_path: Path) -> None:
    here, flow = tmp_path / "here", tmp_path / "flow"
    for folder in (here, flow):
        (folder / "src").mkdir(parents=True)
        (folder / "src" / "both.py").touch()
    (flow / "only.py").touch()
    assert find_entrypoint("src/both.py", [here, flow]) == str(here / "src" / "both.py")
    assert find_entrypoint("only.py", [here, flow]) == str(flow / "only.py")
    assert find_entrypoint(str(flow / "only.py"), [here]) == str(flow / "only.py")
    assert find_entrypoint("json.tool", [here]) == "json.tool"


@pytest.mark.parametrize(
    ("entrypoint", "told"),
    [
        ("absent.py", "entrypoint = absent.py: no such file, from "),
        ("no_such_module", "entrypoint = no_such_module: must be a file that ends in .py, or a module"),
        ("train.sh", "entrypoint = train.sh: must be a file that ends in .py, or a module"),
    ],
)
def test_a_script_that_is_not_there_is_refused_in_one_line(entrypoint: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        find_entrypoint(entrypoint, [tmp_path, tmp_path])
    assert str(refused.value).startswith(told)


@pytest.mark.parametrize("form", ["mapping", "dotted file", "config", "metaflow's"])
def test_a_configuration_comes_in_any_form(form: str, tmp_path: Path) -> None:
    tree: Any = {"root": "/r", "train": {"steps": 7}}
    if form == "dotted file":
        (tmp_path / "c.yaml").write_text("root: /r\ntrain: {steps: 7}\n")
        tree = str(tmp_path / "c.yaml")
    elif form == "config":
        tree = RunConfig.model_validate(tree)
    elif form == "metaflow's":
        plain = dict(tree)
        tree = SimpleNamespace(to_dict=lambda: plain)
    found = gang_config(tree, 3, LOCAL)
    assert (found.root, found.train.steps, found.cluster.nodes) == ("/r", 7, 3)
    assert gang_config(found.model_dump(mode="json"), 3, LOCAL) == found


def test_a_model_may_be_a_preset() -> None:
    named = gang_config({"root": "/r", "model": "gpt2-124m"}, 2, LOCAL)
    changed = gang_config({"root": "/r", "model": {"preset": "gpt2-124m", "n_layers": 2}}, 2, LOCAL)
    assert isinstance(named.model, TransformerConfig)
    assert isinstance(changed.model, TransformerConfig)
    assert (named.model.n_layers, changed.model.n_layers, changed.model.d_model) == (12, 2, 768)


def test_what_is_no_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"train\.stepz = 3: unknown key"):
        gang_config({"train": {"stepz": 3}}, 2, LOCAL)
    with pytest.raises(ConfigError, match="config: must be a mapping"):
        gang_config(3, 2, LOCAL)
    with pytest.raises(ConfigError, match="cannot read it: No such file"):
        gang_config(str(tmp_path / "absent.yaml"), 2, LOCAL)


def test_machines_of_a_cluster_have_no_default_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CONVOY_ROOT", raising=False)
    with pytest.raises(
        ConfigError, match="root = null: must be an s3:// prefix or a gs:// prefix or a folder that every machine"
    ):
        gang_config({}, 2, REMOTE)
    assert gang_config({"root": "s3://bucket/x"}, 2, REMOTE).root == "s3://bucket/x"


@pytest.mark.parametrize(
    ("stack", "tags", "name"),
    [
        ([(0, 2, None)], (), "F-9-train"),
        ([(3, 5, "d"), (1, 2, None)], (), "F-9-train-3"),
        ([(0, 2, None)], ("job:mine", "other"), "mine"),
    ],
)
def test_each_gang_of_a_run_has_a_job_of_its_own_unless_it_is_named(
    stack: list[tuple[int, int, Any]], tags: tuple[str, ...], name: str
) -> None:
    flow = SimpleNamespace(foreach_stack=lambda: stack)
    current = SimpleNamespace(flow_name="F", run_id=9, step_name="train", tags=tags)
    assert CurrentConvoy(None, flow)._job(current) == name


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_seconds_that_no_worker_could_be_told_are_refused(seconds: float) -> None:
    """JSON, in which a worker is told them, has no infinity."""
    with pytest.raises(ConfigError, match=r"^exit_seconds = .*: must be a finite number of seconds, more than 0$"):
        _check_seconds("exit_seconds", seconds)
