"""Convoy starts quickly, because what is heavy is imported only where it is used."""

import os
import pkgutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import convoy

HEAVY = {"benchmark", "data", "model", "network", "parallel", "checkpoint", "script", "training", "workloads"}
"""Rooms that may import torch; every other module may not, not even indirectly."""

TOP = [module.name for module in pkgutil.iter_modules(convoy.__path__)]
LIGHT = [
    *(name for name in TOP if name not in HEAVY),
    *(f"benchmark.{room}" for room in ("results", "analysis", "pages", "suites")),
    *(f"network.{room}" for room in ("nccl", "pages", "results")),
]

NAME_THE_HEAVY = "import sys; print('heavy:', *[name for name in ('torch', 'metaflow') if name in sys.modules])"

IMPORT_ALL = """
import importlib, pkgutil, sys
room = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(getattr(room, "__path__", []), room.__name__ + "."):
    importlib.import_module(module.name)
print(*[name for name in ("torch", "metaflow") if name in sys.modules])
"""


REFERENCE = [sys.executable, "-c", "import asyncio, decimal, email.mime.text, http.server, sqlite3, unittest.mock"]
"""A start of Python that imports much of the standard library."""


def python(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def relative_cpu_time(command: list[str], runs: int = 5) -> float:
    """CPU time of a command, as a multiple of what REFERENCE takes on this machine.

    Both run in turns, and the run of each that the machine's other work disturbed least counts.
    """
    pairs = [(_cpu_seconds(REFERENCE), _cpu_seconds(command)) for _ in range(runs)]
    reference, own = (min(seconds) for seconds in zip(*pairs, strict=True))
    return own / reference


def _cpu_seconds(command: list[str]) -> float:
    with open(os.devnull, "w") as nowhere:
        process = subprocess.Popen(command, stdout=nowhere)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_utime + usage.ru_stime


def test_importing_convoy_takes_little() -> None:
    """0.1 times the reference when this was written, 13 ms."""
    assert relative_cpu_time([sys.executable, "-c", "import convoy"]) <= 0.4


def test_the_command_s_help_takes_little() -> None:
    """0.6 times the reference when this was written, 65 ms."""
    command = str(Path(sys.executable).with_name("convoy"))
    assert relative_cpu_time([command, "--help"]) <= 1.2


def test_importing_convoy_imports_nothing_heavy() -> None:
    assert python("-c", f"import convoy; {NAME_THE_HEAVY}") == "heavy:"


def test_a_script_that_only_reports_progress_needs_neither_torch_nor_metaflow() -> None:
    assert python("-c", f"from convoy import script; script.progress(1); {NAME_THE_HEAVY}") == "heavy:"


def test_the_command_s_help_imports_neither_torch_nor_metaflow() -> None:
    (command,) = (script for script in entry_points(group="console_scripts") if script.name == "convoy")
    assert command.value == "convoy.cli.main:main"
    program = f"from convoy.cli.main import main; main(['--help'], standalone_mode=False); {NAME_THE_HEAVY}"
    assert python("-c", program).splitlines()[-1] == "heavy:"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("room", LIGHT)
def test_no_module_of_a_light_room_imports_torch_or_metaflow(room: str) -> None:
    heavy = set(python("-c", IMPORT_ALL, f"convoy.{room}").split())
    assert heavy <= ({"metaflow"} if room == "launch" else set())  # launch holds Metaflow's mutators


def test_a_task_of_the_train_flow_imports_neither_numpy_nor_what_only_benchmarks_need() -> None:
    """Nor does each refresh of its card, which is a process that imports the flow anew."""
    flow = Path(__file__).parents[1] / "flows" / "train_flow.py"
    modules = ("numpy", "convoy.benchmark", "convoy.config.benchmark", "convoy.job.events.registry")
    unwanted = f"[n for n in {modules} if n in sys.modules]"
    assert python("-c", f"import runpy, sys; runpy.run_path({str(flow)!r}); print({unwanted})") == "[]"


def test_neither_an_agent_s_process_nor_convoy_run_imports_numpy_or_makes_plans() -> None:
    modules = "convoy.gang.agent, convoy.launch.gang.run, convoy.launch.gang.step, convoy.launch.reruns.driver"
    plans = "'convoy.planner.plan', 'convoy.planner.plan_schema'"
    unwanted = f"[n for n in ('numpy', {plans}) if n in sys.modules]"
    assert python("-c", f"import sys, {modules}, convoy.data.manifest; print({unwanted})") == "[]"
