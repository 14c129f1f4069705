"""Steps under the profiler, and the shares that they are made of."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.benchmark.measure.trace import (
    Span,
    Timeline,
    UnreadableTraceError,
    build_timeline,
    step_shares,
)
from convoy.benchmark.results.values import SHARES, SharedPart

HOST = {"pid": 7, "tid": 7}


def _event(
    cat: str, name: str, begin: float, end: float, correlation: int | None = None, **more: Any
) -> dict[str, Any]:
    args = {} if correlation is None else {"correlation": correlation}
    where = HOST if not cat.startswith(("kernel", "gpu")) else {"pid": 0, "tid": 20}
    return {"ph": "X", "cat": cat, "name": name, "ts": begin, "dur": end - begin, "args": args, **where, **more}


def _mark(name: str, at: float) -> dict[str, Any]:
    return _event("user_annotation", f"convoy:{name}", at, at)


MARKS = [
    _mark("begin", 0), _mark("start", 0), _mark("data", 5), _mark("forward", 15), _mark("exchange", 16),
    _mark("backward", 30), _mark("optimizer", 40), _mark("end", 100),
]  # fmt: skip
"""Of one step of 100 µs."""

GPU = [
    *MARKS,
    # The host is done with each part long before the device is, and launches each kernel once.
    _event("cuda_runtime", "cudaLaunchKernel", 6, 7, 1),
    _event("cuda_runtime", "cudaLaunchKernel", 14, 14.5, 2),
    _event("cuda_runtime", "cudaLaunchKernel", 17, 18, 3, tid=8),  # autograd's own thread
    _event("cuda_driver", "cuLaunchKernelEx", 18, 19, 4),
    _event("cuda_runtime", "cudaMemcpyAsync", 31, 32, 5),
    _event("cuda_runtime", "cudaLaunchKernel", 33, 34, 6),
    _event("kernel", "ampere_bf16_s16816gemm", 10, 30, 1),
    _event("kernel", "void at::native::vectorized_elementwise_kernel", 30, 40, 2),
    _event("kernel", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 35, 55, 4, tid=24),
    _event("kernel", "cutlass_80_tensorop_bf16_s16816gemm", 50, 80, 3),
    _event("gpu_memcpy", "Memcpy DtoD (Device -> Device)", 80, 82, 5),
    _event("kernel", "multi_tensor_apply_kernel", 85, 95, 6),
    _event("gpu_user_annotation", "FSDP::all_gather", 0, 100),  # no work of the device
    _event("cpu_op", "aten::mm", 6, 14),  # the host's, which the device's work stands for
    {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "ts": 0},
]


def test_kernels_count_for_what_launched_them() -> None:
    found = step_shares(build_timeline(GPU, on_gpu=True))
    assert found.parts == pytest.approx(
        {"forward": 0.30, "backward": 0.30, "optimizer": 0.12, "communication": 0.10, "data": 0.05, "idle": 0.13}
    )
    assert found.hidden == pytest.approx(0.10)  # 35 to 40, and 50 to 55


def test_the_order_of_the_events_does_not_matter() -> None:
    shuffled = random.Random(5).sample(GPU, len(GPU))
    assert step_shares(build_timeline(shuffled, on_gpu=True)) == step_shares(build_timeline(GPU, on_gpu=True))


def test_on_a_cpu_operators_work_and_what_starts_or_waits_does_not() -> None:
    told = build_timeline(
        [
            *MARKS,
            _event("cpu_op", "aten::linear", 6, 10),
            _event("cpu_op", "aten::addmm", 7, 9),
            _event("cpu_op", "c10d::_allgather_base_", 10, 15),
            _event("user_annotation", "FSDP::all_gather", 10, 15),
            _event("user_annotation", "gloo:all_gather", 10.5, 14, tid=9),
            _event("cpu_op", "aten::copy_", 13, 14, tid=9),  # gloo's thread
            _event("cpu_op", "Torch-Compiled Region: 0/0", 10, 13),
            _event("cpu_op", "## Call CompiledFxGraph abc ##", 11, 12),
            _event("cpu_op", "autograd::engine::evaluate_function: AddmmBackward0", 17, 25),
            _event("cpu_op", "AddmmBackward0", 18, 24),
            _event("cpu_op", "aten::mm", 19, 23),
            _event("cpu_op", "_c10d_functional::wait_tensor", 31, 35),
            _event("cpu_op", "aten::_fused_adamw_", 36, 39),
            _event("cpu_op", "aten::empty", 50, 60),  # in no part
        ],
        on_gpu=False,
    )
    assert told.work == {
        "forward": [Span(6, 10), Span(7, 9), Span(11, 12)], "backward": [Span(19, 23)], "optimizer": [Span(36, 39)],
    }  # fmt: skip
    assert told.collectives == [Span(10.5, 14)]
    assert told.waits == [Span(0, 5)]


def test_a_kernel_whose_launch_is_not_told_counts_for_its_own_time() -> None:
    told = build_timeline([*MARKS, _event("kernel", "late", 20, 28, 77)], on_gpu=True)
    assert told.work == {"backward": [Span(20, 28)]}


@pytest.mark.parametrize("events", [[], MARKS[:-1], MARKS[1:], [_mark("end", 0), _mark("begin", 1)]])
def test_a_trace_without_its_ends_is_refused(events: list[dict[str, Any]]) -> None:
    with pytest.raises(UnreadableTraceError, match="convoy:begin"):
        build_timeline(events, on_gpu=False)


def test_a_gpu_of_which_nothing_is_told_is_not_taken_for_its_host() -> None:
    host = [*MARKS, _event("cpu_op", "aten::mm", 6, 14), _event("gpu_user_annotation", "FSDP::all_gather", 0, 100)]
    with pytest.raises(UnreadableTraceError, match="no GPU kernel"):
        build_timeline(host, on_gpu=True)


PARTS: list[SharedPart] = ["forward", "backward", "optimizer", "data"]

spans = st.lists(
    st.tuples(st.integers(-20, 120), st.integers(0, 60)).map(lambda t: Span(t[0] / 4, (t[0] + t[1]) / 4)), max_size=12
)


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    work = {part: draw(spans) for part in PARTS}
    return Timeline(0.0, draw(st.integers(1, 100)) / 4, work, draw(spans), draw(spans))


def _at(found: list[Span], time: float) -> bool:
    return any(span.begin <= time < span.end for span in found)


@given(timelines())
def test_each_moment_is_counted_for_the_first_that_claims_it(timeline: Timeline) -> None:
    """Beside a count of quarters, into which all spans fall."""
    counted = dict.fromkeys(SHARES, 0)
    hidden = quarters = 0
    while quarters < 4 * timeline.end:
        time = quarters / 4
        part = next((part for part in SHARES if _at(list(timeline.work.get(part, ())), time)), None)
        hidden += part is not None and _at(list(timeline.collectives), time)
        part = part or ("communication" if _at(list(timeline.collectives), time) else None)
        counted[part or ("data" if _at(list(timeline.waits), time) else "idle")] += 1
        quarters += 1
    found = step_shares(timeline)
    assert found.parts == pytest.approx({part: n / quarters for part, n in counted.items()})
    assert found.hidden == pytest.approx(hidden / quarters, abs=1e-9)


def test_no_time_has_no_shares() -> None:
    with pytest.raises(ValueError, match="no shares"):
        step_shares(Timeline(1.0, 1.0))
