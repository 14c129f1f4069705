"""Every folder of Terraform files is formatted and valid, and passes its own tests with a mock provider.

`terraform test` validates what it tests first, with all the modules of it, as `terraform validate` does.
"""

import json
import re
import subprocess
from pathlib import Path

import pytest

from convoy.catalog.instances import instance, instance_names
from tests.infra.terraform import REPOSITORY, TerraformFolder, copy_repository, environment, initialised

pytestmark = pytest.mark.infra

INFRA = REPOSITORY / "infra"
FOLDERS = sorted(
    {str(path.parent.relative_to(INFRA)) for path in INFRA.rglob("main.tf") if ".terraform" not in path.parts}
)
TESTED = [folder for folder in FOLDERS if any((INFRA / folder / "tests").glob("*.tftest.hcl"))]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_repository(tmp_path_factory.mktemp("stacks"))


def test_files_are_formatted() -> None:
    command = ["terraform", "fmt", "-check", "-diff", "-recursive", str(INFRA)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(None))
    assert done.returncode == 0, done.stdout


def test_every_module_is_of_a_stack() -> None:
    sources = {
        f"modules/{name}"
        for stack in ("aws-batch", "aws-eks")
        for file in (INFRA / stack).glob("*.tf")
        for name in re.findall(r'source += "\.\./modules/([a-z-]+)"', file.read_text())
    }
    assert {folder for folder in FOLDERS if folder.startswith("modules/")} == sources


@pytest.mark.parametrize("folder", TESTED)
def test_it_passes_its_own_tests(folder: str, repository: Path) -> None:
    done = initialised(repository, folder).run("test", "-no-color")
    assert " 0 failed" in done.stdout


@pytest.mark.parametrize("backend", ["batch", "kubernetes"])
def test_every_type_gets_the_network_interfaces_of_the_catalog(backend: str, repository: Path) -> None:
    stack = initialised(repository, "modules/gpu-nodes")
    rendered = console(
        stack, "jsonencode(local.interfaces)", instance_types=json.dumps(instance_names()), backend=backend
    )
    for name in instance_names():
        assert rendered[name] == [each._asdict() for each in instance(name).interfaces(backend)]  # type: ignore[arg-type]


def console(stack: TerraformFolder, expression: str, **variables: str) -> dict[str, list[dict[str, object]]]:
    """The value of an expression in a module that reads nothing from AWS."""
    words = [f"-var={name}={value}" for name, value in variables.items()]
    command = ["terraform", f"-chdir={stack.folder}", "console", *words]
    done = subprocess.run(command, input=expression, capture_output=True, text=True, env=stack.environment, check=True)
    found: dict[str, list[dict[str, object]]] = json.loads(json.loads(done.stdout))
    return found
