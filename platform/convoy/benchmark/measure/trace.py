"""Some steps of a variant under `torch.profiler`, and the part of a step that each moment of them belongs to.

Events are those of `torch.profiler`'s trace files, in the format of Chrome's trace viewer: times in microseconds, and
on a GPU's rows `correlation` names the call on the host that launched a kernel.

Computation comes first: an operator on a CPU, a kernel on a GPU, each counts for the part of the step that started it.
Communication is the rest of the collectives, which no computation hides; next comes the wait for a batch. All else is
idle: Python between operators, launches that come too late, waiting for a core or another rank.
"""

import json
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from convoy.benchmark.results.values import SHARES, SharedPart
from convoy.benchmark.variants.convoy import BEGIN, END, MARK, START, MarkedClock, set_mark
from convoy.training.measure.machine import synchronize


class Span(NamedTuple):
    begin: float
    end: float


@dataclass(frozen=True)
class Timeline:
    """What one rank did between two moments; spans may overlap, and reach beyond."""

    begin: float
    end: float
    work: Mapping[SharedPart, Sequence[Span]] = field(default_factory=dict)
    """Computation, by the part that started it: forward, backward, optimizer or data."""
    collectives: Sequence[Span] = ()
    """From the start of each to its end, whether or not the host waits for it."""
    waits: Sequence[Span] = ()
    """Spans in which the host waited for its batch, or made it."""


@dataclass(frozen=True)
class StepShares:
    """Shares of the time between a timeline's ends."""

    parts: dict[SharedPart, float]
    """They add up to 1."""
    hidden: float
    """Share in which a collective was under way during computation; it is in other parts too."""


def step_shares(timeline: Timeline) -> StepShares:
    """Each moment counts once. Raises ValueError for a timeline of no length."""
    total = timeline.end - timeline.begin
    if total <= 0:
        raise ValueError(f"a timeline from {timeline.begin} to {timeline.end} has no shares")
    window = [Span(timeline.begin, timeline.end)]
    parts: dict[SharedPart, float] = dict.fromkeys(SHARES, 0.0)
    rest = window
    computed = ((part, timeline.work.get(part, ())) for part in SHARES)
    for part, spans in (*computed, ("communication", timeline.collectives), ("data", timeline.waits)):
        before, rest = rest, subtract_spans(rest, merge_spans(spans))
        parts[part] += max(0.0, total_length(before) - total_length(rest)) / total
    parts["idle"] = total_length(rest) / total
    under_way = total_length(window) - total_length(subtract_spans(window, merge_spans(timeline.collectives)))
    return StepShares(parts, max(0.0, under_way / total - parts["communication"]))


def merge_spans(spans: Iterable[Span]) -> list[Span]:
    """The same moments as spans that do not touch, in order."""
    apart: list[Span] = []
    for span in sorted(spans):
        if apart and span.begin <= apart[-1].end:
            apart[-1] = Span(apart[-1].begin, max(apart[-1].end, span.end))
        elif span.end > span.begin:
            apart.append(span)
    return apart


def subtract_spans(spans: Sequence[Span], taken: Sequence[Span]) -> list[Span]:
    """`spans` less `taken`; both as `merge_spans` returns them."""
    rest: list[Span] = []
    at = 0
    for begin, end in spans:
        while at < len(taken) and taken[at].end <= begin:
            at += 1
        here = at
        while here < len(taken) and taken[here].begin < end:
            if taken[here].begin > begin:
                rest.append(Span(begin, taken[here].begin))
            begin = max(begin, taken[here].end)
            here += 1
        if begin < end:
            rest.append(Span(begin, end))
    return rest


def total_length(spans: Iterable[Span]) -> float:
    """Total length of spans that do not overlap."""
    return sum(end - begin for begin, end in spans)


Event = Mapping[str, Any]

_PARTS: dict[str, SharedPart] = {
    "forward": "forward", "backward": "backward", "optimizer": "optimizer", "data": "data",
}  # fmt: skip
"""By mark. Of an exchange between ranks, only the wait for one counts, as communication."""

_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_LAUNCH = ("cuda_runtime", "cuda_driver")
_NO_WORK = ("autograd", "torch", "c10d", "_c10d_functional")
"""Namespaces of operators that only start or wait for something else."""

_COMPILED = "## Call CompiledFxGraph"
"""Compiled code shows no operators of its own on a CPU."""


def profile_steps(
    step: Callable[[], None], clock: MarkedClock, steps: int, device: torch.device
) -> list[dict[str, Any]]:
    """Events of the trace of so many steps, after one that the profiler needs for itself. All ranks call it alike."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    clock.marking = True
    try:
        with profile(activities=activities, schedule=schedule(wait=0, warmup=1, active=1)) as profiler:
            step()
            synchronize(device)
            profiler.step()
            set_mark(BEGIN)
            for _ in range(steps):
                step()
            synchronize(device)
            set_mark(END)
    finally:
        clock.marking = False
    with tempfile.TemporaryDirectory(prefix="convoy-trace-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


class UnreadableTraceError(Exception):
    """The trace has no marks, nothing between them, or nothing of the device; the text is one line."""


def build_timeline(events: Iterable[Event], *, on_gpu: bool) -> Timeline:
    """The timeline of events in any order. on_gpu: a GPU computes, and not the host. Raises UnreadableTraceError."""
    complete = [event for event in events if event.get("ph") == "X" and "dur" in event]
    marks = sorted(
        (
            _Mark(event["name"].removeprefix(MARK), _span(event), _thread(event))
            for event in complete
            if event.get("cat") == "user_annotation" and event["name"].startswith(MARK)
        ),
        key=lambda mark: mark.span,
    )
    begin = next((mark.span.end for mark in marks if mark.name == BEGIN), None)
    end = next((mark.span.begin for mark in marks if mark.name == END), None)
    if begin is None or end is None or end <= begin:
        raise UnreadableTraceError(f"no steps between {MARK}{BEGIN} and {MARK}{END}")
    phases = _Phases(marks)
    kernels = [event for event in complete if event.get("cat") in _ON_DEVICE]
    if on_gpu and not kernels:  # e.g. without the right to the GPU's counters
        raise UnreadableTraceError("the profiler recorded no GPU kernel")
    return Timeline(
        begin=begin,
        end=end,
        work=_device_work(kernels, complete, phases) if on_gpu else _host_work(complete, marks[0].thread, phases),
        collectives=[_span(event) for event in complete if _is_collective(event)],
        waits=[span for span, part in zip(phases.spans, phases.parts, strict=True) if part == "data"],
    )


class _Mark(NamedTuple):
    name: str
    span: Span
    thread: object


class _Phases:
    """The part of the step that the host was in, from mark to mark."""

    def __init__(self, marks: Sequence[_Mark]) -> None:
        ends = [mark for mark in pairwise(marks) if mark[1].name not in (BEGIN, END, START)]
        self.spans = [Span(before.span.end, after.span.begin) for before, after in ends]
        self.parts = [_PARTS.get(after.name) for _, after in ends]
        self._begins = [span.begin for span in self.spans]

    def part_at(self, time: float) -> SharedPart | None:
        place = bisect_right(self._begins, time) - 1
        return self.parts[place] if place >= 0 and time < self.spans[place].end else None


def _host_work(events: Iterable[Event], thread: object, phases: _Phases) -> dict[SharedPart, list[Span]]:
    """Operators of the thread that trains. Other threads prefetch batches, or carry out collectives."""
    work: dict[SharedPart, list[Span]] = {}
    for event in events:
        part = phases.part_at(event["ts"])
        if part is not None and _thread(event) == thread and _is_operator(event):
            work.setdefault(part, []).append(_span(event))
    return work


def _device_work(kernels: Iterable[Event], events: Iterable[Event], phases: _Phases) -> dict[SharedPart, list[Span]]:
    """Kernels and copies, by the part that the host was in when it launched them: the device runs behind it."""
    launched: dict[object, float] = {
        _correlation_id(event): event["ts"] for event in events if event.get("cat") in _LAUNCH
    }
    work: dict[SharedPart, list[Span]] = {}
    for event in kernels:
        part = phases.part_at(launched.get(_correlation_id(event), _span(event).begin))
        if part is not None and not _is_collective(event):
            work.setdefault(part, []).append(_span(event))
    return work


def _is_operator(event: Event) -> bool:
    name = str(event["name"])
    space, colons, _ = name.partition("::")
    operator = event.get("cat") == "cpu_op" and bool(colons) and space not in _NO_WORK
    return operator or name.startswith(_COMPILED)


def _is_collective(event: Event) -> bool:
    """A kernel of NCCL, or a collective of gloo, from its start to its end."""
    name = str(event["name"])
    if event.get("cat") == "kernel":
        return name.startswith("nccl")
    return event.get("cat") == "user_annotation" and name.startswith("gloo:")


def _correlation_id(event: Event) -> object:
    return event.get("args", {}).get("correlation")


def _thread(event: Event) -> object:
    return event.get("pid"), event.get("tid")


def _span(event: Event) -> Span:
    return Span(event["ts"], event["ts"] + event["dur"])
