"""What launching needs to know of this host."""

import os
import sys
from pathlib import Path

import pytest

from convoy.config.errors import ConfigError
from convoy.launch.checks.host import check_interpreter, local_gpus, name_user, this_interpreter, use_this_interpreter

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
    assert str(refused.value).startswith(f"PATH: `python` is {tmp_path}/python, this is {sys.executable}; ")
    assert f"PATH={Path(sys.executable).parent}:$PATH" in str(refused.value)


def test_no_python_on_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="`python` is not found"):
        check_interpreter()


def test_this_interpreter_is_called_python_where_it_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python3"))
    assert this_interpreter() == str(tmp_path / "python3")
    (tmp_path / "python").symlink_to("python3")
    assert this_interpreter() == str(tmp_path / "python")
    (tmp_path / "python").unlink()
    (tmp_path / "python").write_text("another")
    assert this_interpreter() == str(tmp_path / "python3")


def test_this_interpreter_is_put_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    use_this_interpreter()
    check_interpreter()
    once = os.environ["PATH"]
    use_this_interpreter()
    assert os.environ["PATH"] == once


@pytest.mark.parametrize("user", [None, "", "root"])
def test_a_user_without_a_name_for_metaflow_gets_one(user: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    if user is not None:
        monkeypatch.setenv("USER", user)
    name_user()
    assert "@" in os.environ["USERNAME"]


def test_a_user_s_own_name_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("USER", "ada")
    name_user()
    assert "USERNAME" not in os.environ
