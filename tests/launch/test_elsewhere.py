"""Launch, plan and dry run use nothing that only Linux has: a cluster's user may sit at a Mac."""

import sys
from pathlib import Path

from tests.flows.places import REPOSITORY, Place

LAUNCH = """
from tests.launch.elsewhere import become_a_mac
become_a_mac()
import importlib, pkgutil, convoy
for module in pkgutil.walk_packages(convoy.__path__, "convoy."):
    room = module.name.split(".")[1]
    if room.startswith("cli") or room in ("catalog", "config", "job", "launch", "planner", "report", "storage"):
        importlib.import_module(module.name)
from convoy.cli.main import main
main(["plan", "gpt-7b-p4d"], standalone_mode=False)
import runpy, sys
sys.argv = ["flows/train_flow.py", "--config", "run", "gpt-7b-p4d", "run", "--dry-run"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_benchmark_s_dry_run_works_without_what_only_linux_has(tmp_path: Path) -> None:
    words = ["tests.launch.elsewhere", "flows/benchmark_flow.py", "run", "--dry-run"]
    done = Place(tmp_path).run("env", "-C", REPOSITORY, sys.executable, "-m", *words)
    assert done.returncode == 0, done.stderr


def test_so_do_a_plan_and_a_dry_run_after_all_that_a_launch_may_import(tmp_path: Path) -> None:
    done = Place(tmp_path, {"AWS_EC2_METADATA_DISABLED": "true"}).run(
        "env", "-C", REPOSITORY, sys.executable, "-c", LAUNCH
    )
    assert done.returncode == 0, done.stderr
