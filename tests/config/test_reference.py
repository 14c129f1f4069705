"""docs/reference/configuration.md says what the classes say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from convoy.config.benchmark import BenchConfig, EnvironmentConfig
from convoy.config.errors import ConfigError, leaf_keys
from convoy.config.loader import read_overrides, read_run, resolve
from convoy.config.run import RunConfig

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "docs" / "reference" / "configuration.md").read_text()


def test_the_committed_reference_is_up_to_date() -> None:
    check = subprocess.run(
        [sys.executable, REPOSITORY / "tools" / "config_reference.py", "--check"], capture_output=True, text=True
    )
    assert (check.returncode, check.stderr) == (0, "")


@pytest.mark.parametrize(("name", "model"), [("reference", RunConfig), ("benchmark reference", BenchConfig)])
def test_every_key_is_in_the_reference_once_for_each_class_that_has_it(name: str, model: type[BaseModel]) -> None:
    part = TEXT[TEXT.index(f"<!-- {name}: ") : TEXT.index(f"<!-- end of {name} ")]
    rows = re.findall(r"^\| `([\w.]+)` \|", part, re.MULTILINE)
    assert sorted(rows) == sorted(".".join(keys) for keys in leaf_keys(model))


def test_the_keys_of_a_lists_members_are_in_the_reference() -> None:
    rows = re.findall(r"^\| `sync\.environments\[\]\.(\w+)` \|", TEXT, re.MULTILINE)
    assert rows == list(EnvironmentConfig.model_fields)


def test_every_key_is_explained() -> None:
    unexplained = re.findall(r"^\| `([\w.]+)` \|.*\|\s+\|$", TEXT, re.MULTILINE)
    assert set(unexplained) <= {"data.corpus.kind", "data.tokenizer.kind"}


def test_the_example_file_is_a_valid_configuration() -> None:
    example = re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert example
    assert resolve(read_run(example[1]), {}).train.steps == 20000


OVERRIDES = re.findall(r'--config-value set "([^"]+)"', TEXT)


@pytest.mark.parametrize("overrides", [text for text in OVERRIDES if "KEY" not in text])
def test_every_override_shown_is_valid(overrides: str) -> None:
    resolve({}, read_overrides(overrides))


@pytest.mark.parametrize(
    ("overrides", "line"), re.findall(r"^\| `([\w.]+=[\w/.-]+)` \| `(.*)` \|$", TEXT, re.MULTILINE)
)
def test_every_error_shown_is_the_line_one_gets(overrides: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve({}, read_overrides(overrides))
    assert str(caught.value).replace(f"{REPOSITORY}/", "") == line
