"""What launching needs to know of this host, and what a local run would read from it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from convoy.config.errors import ConfigError, PrerequisiteMissing
from convoy.config.loader import resolve
from convoy.config.model import TransformerConfig
from convoy.config.run import RunConfig
from convoy.launch.checks import host
from convoy.launch.checks.host import (
    check_interpreter,
    check_local_prerequisites,
    interpreter_path,
    local_gpus,
    put_python_on_path,
    set_user_name,
)
from convoy.model.hf_config import hf_config
from convoy.model.hf_tensors import hf_tensor_shapes
from tests.nobody import as_nobody

NAMES = ("METAFLOW_USER", "SUDO_USER", "USERNAME", "USER")


@pytest.mark.parametrize(
    ("visible", "gpus"), [("", 0), ("-1", 0), ("0", 1), ("0,1,3", 3), ("GPU-8932f937, GPU-46bb", 2)]
)
def test_gpus_are_those_that_cuda_would_see(visible: str, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert local_gpus() == gpus


def test_another_python_on_path_is_refused_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "python").write_text("#!/bin/sh")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        check_interpreter()
    assert str(refused.value).startswith(f"PATH: `python` is {tmp_path}/python, this is {interpreter_path()}; ")
    assert f"PATH={Path(sys.executable).parent}:$PATH" in str(refused.value)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="`python` is not found"):
        check_interpreter()


def test_this_interpreter_is_called_python_where_it_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    assert interpreter_path() == str(tmp_path / "python3")
    (tmp_path / "python").symlink_to("python3")
    assert interpreter_path() == str(tmp_path / "python")
    (tmp_path / "python").unlink()
    (tmp_path / "python").write_text("another")
    assert interpreter_path() == str(tmp_path / "python3")


def test_this_interpreter_may_be_started_by_another_of_its_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("python", "python3"):
        (tmp_path / name).symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    monkeypatch.setenv("PATH", str(tmp_path))
    check_interpreter()


def test_this_interpreter_is_put_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    put_python_on_path()
    check_interpreter()
    once = os.environ["PATH"]
    put_python_on_path()
    assert os.environ["PATH"] == once


@pytest.mark.parametrize("user", [None, "", "root", "ada"])
def test_only_a_user_without_a_name_for_metaflow_gets_one(user: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    if user is not None:
        monkeypatch.setenv("USER", user)
    set_user_name()
    assert ("@" in os.environ.get("USERNAME", "")) == (user != "ada")


def config(root: Path, **over: Any) -> RunConfig:
    synthetic = {
        "model": {"vocab_size": 257},
        "data": {"corpus": {"kind": "synthetic"}, "tokenizer": {"kind": "bytes"}},
    }
    return resolve({"root": str(root), **synthetic}, over)


def files(path: Path) -> dict[str, Any]:
    return {"corpus": {"kind": "files", "path": str(path)}}


def test_an_engine_that_is_not_installed_is_refused_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "find_spec", lambda _: None)
    config = resolve({"root": str(tmp_path), "engine": {"name": "deepspeed"}}, {})
    with pytest.raises(
        PrerequisiteMissing, match=r"^engine = deepspeed: .*pip install 'metaflow-convoy\[deepspeed\]'$"
    ):
        check_local_prerequisites(config)


def test_a_corpus_that_is_there_is_fine(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    check_local_prerequisites(config(tmp_path / "root", data=files(tmp_path)))
    assert not (tmp_path / "root").exists()


def test_any_file_of_the_corpus_that_may_not_be_read_is_named(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        (tmp_path / name).write_text("text")
    (tmp_path / "b.txt").chmod(0)
    wanted = config(tmp_path / "root", data=files(tmp_path))

    def refusal() -> str:
        with pytest.raises(ConfigError) as refused:
            check_local_prerequisites(wanted)
        return str(refused.value)

    assert as_nobody(tmp_path, refusal) == f"data.corpus: cannot read {tmp_path}/b.txt: Permission denied"


def test_a_root_without_room_for_the_shards_is_refused_with_both_sizes(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(
        ConfigError, match=r"no space for the token shards: they take about [\d.]+ GB, [\d.]+ GB are free"
    ):
        check_local_prerequisites(config(tmp_path / "root", data={"corpus": {"tokens": free}}))


def test_where_data_were_prepared_before_the_room_is_not_judged_again(tmp_path: Path) -> None:
    (tmp_path / "_data").mkdir()
    check_local_prerequisites(config(tmp_path, data={"corpus": {"tokens": shutil.disk_usage(tmp_path).free}}))


def custom(build: str) -> dict[str, Any]:
    return {"build": build, "vocab_size": 257, "max_sequence_length": 256}


def test_a_module_of_an_installed_package_is_found_without_importing_it(tmp_path: Path) -> None:
    check_local_prerequisites(config(tmp_path, model=custom("antigravity:geohash")))  # importing it opens a browser


def test_a_function_that_its_module_does_not_have_is_told_without_importing_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "models.py").write_text("raise SystemExit('imported')\ndef build():\n    pass\n")

    check_local_prerequisites(config(tmp_path, model=custom("own.models:build")))
    with pytest.raises(ConfigError, match=r"no function buidl in .*own/models\.py"):
        check_local_prerequisites(config(tmp_path, model=custom("own.models:buidl")))
    with pytest.raises(ConfigError, match="no module named modles on the Python path"):
        check_local_prerequisites(config(tmp_path, model=custom("own.modles:build")))


def test_the_tensors_of_a_model_folder_are_looked_at_without_torch(tmp_path: Path) -> None:
    model = TransformerConfig(vocab_size=257, n_layers=1, d_model=8, n_heads=1)
    (tmp_path / "config.json").write_text(json.dumps(hf_config(model, "float32")))
    tensors = {name: np.zeros(shape, dtype=np.float32) for name, shape in hf_tensor_shapes(model).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    shape = model.model_dump(exclude={"name", "init_from"})
    wanted = config(tmp_path / "root", model={**shape, "init_from": str(tmp_path)})
    check_local_prerequisites(wanted)

    save_file({**tensors, "transformer.h.1.ln_1.bias": np.zeros(8)}, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"tensor transformer\.h\.1\.ln_1\.bias in model\.safetensors is not part"):
        check_local_prerequisites(wanted)
    index = tmp_path / "model.safetensors.index.json"
    (tmp_path / "model.safetensors").unlink()
    index.write_text("[]")
    with pytest.raises(ConfigError, match=rf"^model\.init_from = {tmp_path}: {index.name} holds \[\]: must be a JSON"):
        check_local_prerequisites(wanted)
    code = "import sys, convoy.model.hf_tensors; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
