"""From the events of a profiler's trace to what a rank did, part by part. Pure; imports no torch.

Events are those of `torch.profiler`'s trace files, in the format of Chrome's trace viewer: times in microseconds, and
on a GPU's rows `correlation` names the call on the host that launched a kernel.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from convoy.benchmark.measure.step_shares import Span, Timeline
from convoy.benchmark.results.values import SharedPart

Event = Mapping[str, Any]

MARK = "convoy:"
BEGIN, END, START = "begin", "end", "start"
"""Marks of where the profiled steps begin and end, and where each step starts. A mark of another name ends the part of
the step that it names."""

_PARTS: dict[str, SharedPart] = {
    "forward": "forward", "backward": "backward", "optimizer": "optimizer", "data": "data",
}  # fmt: skip
"""Of the marks; what ranks tell each other in an exchange is communication where it waits for one, and else none."""

_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = ("cuda_runtime", "cuda_driver")
_NO_WORK = ("autograd", "torch", "c10d", "_c10d_functional")
"""Namespaces of operators that only start or wait for something else."""

_COMPILED = "## Call CompiledFxGraph"
"""Compiled code shows no operators of its own on a CPU."""


class UnreadableTraceError(Exception):
    """It has no marks, nothing between them, or nothing of the device; the text is one line."""


def timeline(events: Iterable[Event], *, on_gpu: bool) -> Timeline:
    """Whatever the order of the events. on_gpu: a GPU computes, and not the host. Raises UnreadableTraceError."""
    told = [event for event in events if event.get("ph") == "X" and "dur" in event]
    marks = sorted(_marks(told), key=lambda mark: mark.span)
    begin = next((mark.span.end for mark in marks if mark.name == BEGIN), None)
    end = next((mark.span.begin for mark in marks if mark.name == END), None)
    if begin is None or end is None or end <= begin:
        raise UnreadableTraceError(f"no steps between {MARK}{BEGIN} and {MARK}{END}")
    phases = _Phases(marks)
    kernels = [event for event in told if event.get("cat") in _ON_DEVICE]
    if on_gpu and not kernels:  # e.g. without the right to the GPU's counters
        raise UnreadableTraceError("the profiler told of no kernel of the GPU")
    work = _of_device(kernels, told, phases) if on_gpu else _of_host(told, marks[0].thread, phases)
    return Timeline(
        begin=begin,
        end=end,
        work=work,
        collectives=[_span(event) for event in told if _is_collective(event)],
        waits=[span for span, part in zip(phases.spans, phases.parts, strict=True) if part == "data"],
    )


class _Mark(NamedTuple):
    name: str
    span: Span
    thread: object


def _marks(events: Iterable[Event]) -> Iterable[_Mark]:
    for event in events:
        if event.get("cat") == "user_annotation" and event["name"].startswith(MARK):
            yield _Mark(event["name"].removeprefix(MARK), _span(event), _thread(event))


class _Phases:
    """What the host was at, from mark to mark."""

    def __init__(self, marks: Sequence[_Mark]) -> None:
        ends = [mark for mark in pairwise(marks) if mark[1].name not in (BEGIN, END, START)]
        self.spans = [Span(before.span.end, after.span.begin) for before, after in ends]
        self.parts = [_PARTS.get(after.name) for _, after in ends]
        self._begins = [span.begin for span in self.spans]

    def at(self, time: float) -> SharedPart | None:
        place = bisect_right(self._begins, time) - 1
        return self.parts[place] if place >= 0 and time < self.spans[place].end else None


def _of_host(events: Iterable[Event], thread: object, phases: _Phases) -> dict[SharedPart, list[Span]]:
    """Operators of the thread that trains. Others hand batches over, or carry out collectives."""
    found: dict[SharedPart, list[Span]] = {}
    for event in events:
        part = phases.at(event["ts"])
        if part is not None and _thread(event) == thread and _is_work(event):
            found.setdefault(part, []).append(_span(event))
    return found


def _of_device(kernels: Iterable[Event], events: Iterable[Event], phases: _Phases) -> dict[SharedPart, list[Span]]:
    """Kernels and copies, for what the host was at when it launched them: the device runs behind it."""
    launched: dict[object, float] = {
        _correlation(event): event["ts"] for event in events if event.get("cat") in _LAUNCH
    }
    found: dict[SharedPart, list[Span]] = {}
    for event in kernels:
        part = phases.at(launched.get(_correlation(event), _span(event).begin))
        if part is not None and not _is_collective(event):
            found.setdefault(part, []).append(_span(event))
    return found


def _is_work(event: Event) -> bool:
    name = str(event["name"])
    space, colons, _ = name.partition("::")
    operator = event.get("cat") == "cpu_op" and bool(colons) and space not in _NO_WORK
    return operator or name.startswith(_COMPILED)


def _is_collective(event: Event) -> bool:
    """A kernel of NCCL, or what gloo has under way, from when it is asked for."""
    name = str(event["name"])
    if event.get("cat") == "kernel":
        return name.startswith("nccl")
    return event.get("cat") == "user_annotation" and name.startswith("gloo:")


def _correlation(event: Event) -> object:
    return event.get("args", {}).get("correlation")


def _thread(event: Event) -> object:
    return event.get("pid"), event.get("tid")


def _span(event: Event) -> Span:
    return Span(event["ts"], event["ts"] + event["dur"])
