"""nccl-tests' results of all generations: what is read, and which rows cannot be true."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.network.results.nccl_checks import contradictions
from convoy.network.results.nccl_json import format_nccl_json, parse_nccl_json
from convoy.network.results.nccl_run import PROGRAMS, TYPE_BYTES, NcclRun
from convoy.network.results.nccl_text import parse_nccl_text
from convoy.network.results.read import read_result
from tests.network.results.nccl_output import Output, json_of, text_of_2_4, text_of_2_13, text_of_2_19

TEXTS: dict[str, Callable[[Output], str]] = {
    "2.4": text_of_2_4,
    "2.13": text_of_2_13,
    "2.13 N/A": lambda output: text_of_2_13(output, wrong="N/A"),
    "2.19": text_of_2_19,
    "2.19 -I 1": lambda output: text_of_2_19(output, per_iteration=True),
    "2.19 -S": lambda output: text_of_2_19(output, clock=True),
}

OUTPUTS = st.builds(
    Output,
    operation=st.sampled_from(list(PROGRAMS.values())),
    ranks=st.sampled_from([2, 8, 24, 64]),
    hosts=st.sampled_from([1, 2]),
    dtype=st.sampled_from([name for name in TYPE_BYTES if not name.startswith("fp8")]),
    times=st.lists(
        st.tuples(st.sampled_from([0, 1, 2, 1000, 2**20, 2**28]), *2 * [st.floats(0.02, 3e7)]), min_size=1, max_size=5
    ).map(tuple),
    prefix=st.sampled_from(["", "[1,0]<stdout>:", "0: ", "nccl-launcher-x7 2026-05-01T12:00:01Z ", "worker-0 | "]),
)


def only_run(text: str) -> NcclRun:
    (run,) = parse_nccl_text(text)
    return run


@pytest.mark.parametrize("generation", TEXTS)
@settings(max_examples=60, deadline=None)
@given(output=OUTPUTS)
def test_a_true_output_of_any_generation_is_read_whole_and_contradicts_nothing(generation: str, output: Output) -> None:
    run = only_run(TEXTS[generation](output))
    assert (run.operation, run.ranks, run.hosts) == (output.operation, output.ranks, output.hosts)
    assert [(row.size, row.count, row.dtype) for row in run.rows] == [
        (output.size(count), count, output.dtype) for count, *_ in output.times
    ]
    assert contradictions(run) == []


@settings(max_examples=80, deadline=None)
@given(output=OUTPUTS, version=st.sampled_from([1, 2, 3]), per_iteration=st.booleans())
def test_json_reads_as_it_was_written_and_contradicts_nothing(
    output: Output, version: int, per_iteration: bool
) -> None:
    run = parse_nccl_json(json.loads(json_of(output, version, per_iteration)))
    assert (run.operation, run.ranks, run.hosts) == (output.operation, output.ranks, output.hosts)
    assert contradictions(run) == []
    # What was written anew reads back equal, but for what is of the program that wrote it.
    again = parse_nccl_json(json.loads(format_nccl_json(run)))
    assert replace(again, tests_version="") == run


@settings(max_examples=60, deadline=None)
@given(
    generation=st.sampled_from(list(TEXTS)),
    operation=st.sampled_from(list(PROGRAMS.values())),
    which=st.integers(0, 2),
    column=st.sampled_from(["time", "algbw", "busbw"]),
    factor=st.sampled_from([0.5, 0.97, 1.03, 2.0]),
)
def test_a_row_with_one_changed_figure_is_named_with_its_line(
    generation: str, operation: str, which: int, column: str, factor: float
) -> None:
    output = Output(
        operation=next(each for each in PROGRAMS.values() if each == operation),
        times=[(2**20, 412.3, 409.0), (2**21, 812.3, 799.0), (2**22, 1612.3, 1599.0)],
    )
    lines = TEXTS[generation](output).splitlines()
    at = [i for i, line in enumerate(lines) if " float " in line and not line.startswith("#")][which]
    words = lines[at].split()
    first = next(i for i, word in enumerate(words) if "." in word)
    index = first + ("time", "algbw", "busbw").index(column)
    words[index] = f"{float(words[index]) * factor:.2f}"
    lines[at] = " ".join(words)
    found = contradictions(only_run("\n".join(lines)))
    assert {each.where for each in found} == {f"line {at + 1}"}
    assert all("out of place" in each.text for each in found)


def test_a_row_whose_ratio_is_that_of_other_ranks_is_named() -> None:
    text = text_of_2_13(Output(ranks=8, hosts=1)).replace("Rank  7", "Rank  8")  # a number of ranks, not their names
    assert contradictions(only_run(text)) == []
    wrong = "\n".join(line for line in text.splitlines() if "Rank  6" not in line)
    assert {each.where for each in contradictions(only_run(wrong))} == {
        f"line {number}" for number, line in enumerate(wrong.splitlines(), 1) if "16777216" in line and "float" in line
    }


def test_bandwidth_above_what_links_between_hosts_allow_is_named() -> None:
    run = only_run(text_of_2_19(Output(times=[(2**28, 25000.0, 25000.0)])))  # algbw 42.9 GB/s, busbw 80.5
    assert contradictions(run, link_bytes_per_second=50e9) == []
    (out_of_place, in_place) = contradictions(run, link_bytes_per_second=40e9)
    assert "links of 2 hosts allow at most 75 GB/s" in out_of_place.text
    assert "in place" in in_place.text


def test_all_gathers_of_before_june_2020_have_bandwidths_of_their_own_definition() -> None:
    output = Output(operation="all_gather", times=[(2**20, 412.3, 409.0), (2**21, 812.3, 799.0)])
    text = text_of_2_4(output)
    for count, *times in output.times:
        for microseconds in times:
            algbw, busbw = output.bandwidths(count, microseconds)
            text = text.replace(f"{algbw:6.2f}  {busbw:6.2f}", f"{busbw:6.2f}  {busbw:6.2f}")
    assert contradictions(only_run(text)) == []


def test_iterations_of_text_and_json_are_read_in_microseconds() -> None:
    row = only_run(text_of_2_19(Output(times=[(2, 100.0, 50.0)]), per_iteration=True)).rows[0]
    assert row.in_place is not None
    assert row.in_place.iterations is not None
    assert row.in_place.iterations.minimum == 45.0
    assert row.in_place.iterations.p99 == 65.0
    assert row.in_place.iterations.cv_percent == 7.25
    run = parse_nccl_json(json.loads(json_of(Output(times=[(2, 100.0, 50.0)]), per_iteration=True)))
    assert run.rows[0].in_place is not None
    times = run.rows[0].in_place.iterations
    assert times is not None
    assert (times.skipped, times.times) == (1, (150.0, 45.0, 50.0, 55.0))
    assert times.process_times[1] == (148.5, 44.55, 49.5, 54.45)


def test_several_runs_of_a_file_are_read_one_by_one() -> None:
    gathers = Output(operation="all_gather", ranks=8, hosts=1)
    runs = parse_nccl_text(text_of_2_4(Output()) + text_of_2_13(gathers) + text_of_2_19(Output(operation="sendrecv")))
    assert [(run.operation, run.ranks) for run in runs] == [("all_reduce", 16), ("all_gather", 8), ("sendrecv", 16)]
    assert runs[2].nccl_version == "2.28.7"


def excerpt(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if " float " in line)


def test_ranks_and_operation_of_an_excerpt_follow_from_its_rows() -> None:
    for operation in ("all_reduce", "reduce_scatter"):
        run = only_run(excerpt(text_of_2_13(Output(operation=operation, ranks=24))))
        assert (run.operation, run.ranks, run.ranks_inferred, run.hosts) == (operation, 24, True, None)


@pytest.mark.parametrize(
    ("output", "what"),
    [(Output(operation="all_gather"), "--op"), (Output(operation="reduce"), "--ranks"),
     (Output(ranks=64, times=[(2, 10.0, 10.0)]), "--ranks")],
)  # fmt: skip
def test_an_excerpt_that_does_not_say_enough_asks_for_what_is_missing(output: Output, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        parse_nccl_text(excerpt(text_of_2_13(output)))


def test_an_excerpt_that_was_not_checked_in_place_is_not_taken_for_an_all_reduce() -> None:
    lines = excerpt(text_of_2_13(Output(ranks=2))).splitlines()
    unchecked = "\n".join(line.removesuffix("    0") + "  N/A" for line in lines)
    with pytest.raises(ValueError, match="--op"):
        parse_nccl_text(unchecked)


def test_tags_of_mpirun_within_a_line_are_left_out() -> None:
    text = text_of_2_13(Output()).replace("      -1  ", "      -1[0]  ")
    assert "-1[0]" in text
    assert len(only_run(text).rows) == 3
    assert contradictions(only_run(text)) == []


def test_cpu_times_are_not_held_against_bandwidths() -> None:
    text = text_of_2_13(Output(times=[(2**20, 100.0, 100.0)])).replace("   time ", "cputime ")
    changed = text.replace("  100.0 ", "   12.0 ")
    assert contradictions(only_run(changed)) == []
    assert contradictions(only_run(changed.replace("cputime", "   time"))) != []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("hello", "must be the output of nccl-tests"),
        ('{"version": 3', "not complete JSON"),
        ('{"version": 9, "nccl_version": 1}', "version = 9"),
        ('{"version": 3, "nccl_version": 1}', "results"),
        ("#   bytes   N   type   op   time  algbw  busbw  res", "before NCCL 2.4"),
    ],
)
def test_a_file_of_no_tool_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_result(text)
