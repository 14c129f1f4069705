"""Which tests start processes or the server of a bucket, by the names that they and their fixtures use."""

import functools
import inspect
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

import pytest

STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
"""The interpreter's audit events of a process that starts."""

_MODULES = {"multiprocessing", "subprocess"}
_OF_OS = {"fork", "forkpty", "posix_spawn", "system"}
_OF_CONVOY = {
    "Checkpoints", "FlowProcess", "Gang", "LocalNode", "Prefork", "SaveEngine", "WriterProcess", "query_gpu_problem",
    "run_groups", "settle_param_dtype", "start_node",
}  # fmt: skip


def starts_processes(item: pytest.Item) -> bool:
    """Whether the test or one of its fixtures uses anything that starts processes, directly or through the functions
    and classes of `tests`. An estimate: the guard in `tests/conftest.py` fails a test that it overlooks."""
    fixtures: Any = getattr(item, "_fixtureinfo", None)
    definitions = fixtures.name2fixturedefs.values() if fixtures else ()
    functions = [getattr(item, "obj", None), *(fixture.func for group in definitions for fixture in group)]
    return any(_starts_processes(inspect.unwrap(function)) for function in functions if callable(function))


def uses_bucket(item: pytest.Item) -> bool:
    """Whether the test talks to the server of a bucket, whose threads take as much time as a process."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    names = getattr(item, "fixturenames", ())
    return "s3_endpoint" in names or "gcs_endpoint" in names or parameters.get("store_uri") in ("s3", "gcs")


@functools.cache
def _starts_processes(function: Any) -> bool:
    seen, pending = set[int](), [function]
    while pending:
        thing = pending.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if inspect.isfunction(thing) and "transformers" in _names(thing.__code__):
            return True  # its models import deepspeed, which starts a compiler
        for owner, name, value in _used_by(thing):
            module = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "") or ""
            if module.partition(".")[0] in _MODULES or (owner == "os" and name in _OF_OS):
                return True
            if module.startswith("convoy.") and getattr(value, "__name__", "") in _OF_CONVOY:
                return True
            if module.startswith("tests.") and not isinstance(value, ModuleType):
                pending.append(value)
    return False


def _used_by(thing: Any) -> Iterator[tuple[str, str, Any]]:
    """What a function, or the methods of a class, use: the module that has it, its name, its value."""
    thing = inspect.unwrap(thing)
    if inspect.isclass(thing):
        for base in thing.__bases__:
            yield "", base.__name__, base
        for value in vars(thing).values():
            function = getattr(value, "__func__", getattr(value, "fget", value))
            if inspect.isfunction(function):
                yield from _used_by(function)
    elif inspect.isfunction(thing):
        names = set(_names(thing.__code__))
        for name in names & thing.__globals__.keys():
            value = thing.__globals__[name]
            yield "", name, value
            if isinstance(value, ModuleType):
                for member in names & vars(value).keys():
                    yield value.__name__, member, getattr(value, member)
        for cell in thing.__closure__ or ():
            yield "", "", cell.cell_contents


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
