"""The figures over all trials of a drill, and the JSON that tells them."""

import json

from convoy.drills.faults.worker import WorkerHang, WorkerKill
from convoy.drills.result import TrialResult, failure_notes, percentiles, result_of, table_row


def a_trial(detected: float, *, ok: bool = True, recovered: float = 2.0) -> TrialResult:
    return TrialResult(
        ok=ok,
        reason="" if ok else "8 samples lost",
        detected_s=detected,
        recovered_s=recovered,
        beyond_s=3.0,
        steps_recomputed=5,
        samples_lost=0 if ok else 8,
        samples_repeated=0,
        final_state_equal=ok,
    )


def test_the_json_has_the_keys_that_are_promised() -> None:
    told = json.loads(result_of("worker-kill", [a_trial(0.2)]).model_dump_json())
    assert told == {
        "drill": "worker-kill",
        "trials": [
            {
                "ok": True,
                "not_run": None,
                "reason": "",
                "detected_s": 0.2,
                "recovered_s": 2.0,
                "beyond_s": 3.0,
                "steps_recomputed": 5,
                "samples_lost": 0,
                "samples_repeated": 0,
                "final_state_equal": True,
            }
        ],
        "summary": {
            "n": 1,
            "ok": 1,
            "detected_s": {"p50": 0.2, "p90": 0.2, "max": 0.2},
            "recovered_s": {"p50": 2.0, "p90": 2.0, "max": 2.0},
        },
    }


def test_percentiles_are_values_that_were_measured() -> None:
    found = percentiles([*map(float, range(1, 11)), None])
    assert (found.p50, found.p90, found.max) == (5.0, 9.0, 10.0)
    assert percentiles([None]).p50 is None


def test_a_trial_that_was_not_run_is_neither_ok_nor_failed() -> None:
    result = result_of("partition", [TrialResult(ok=False, not_run="network namespaces")])
    assert not result.failed
    assert (result.summary.n, result.summary.ok) == (0, 0)
    assert table_row(result, WorkerKill)[1] == "not run"
    assert failure_notes([result]) == ["partition: this machine lacks network namespaces"]


def test_one_trial_that_is_not_ok_fails_the_drill_and_is_told() -> None:
    result = result_of("worker-kill", [a_trial(0.2), a_trial(0.2, ok=False)])
    assert result.failed
    assert failure_notes([result]) == ["worker-kill, trial 2: 8 samples lost"]
    cells = table_row(result, WorkerKill)
    assert cells[1] == "1 of 2"
    assert cells[-2:] == ("8 samples", "differs in 1 of 2")


def test_the_table_tells_what_misses_its_target() -> None:
    assert table_row(result_of("worker-kill", [a_trial(0.2)]), WorkerKill)[3] == "0.3"
    assert table_row(result_of("worker-kill", [a_trial(0.4)]), WorkerKill)[3] == "0.3 NOT MET"
    late = [a_trial(0.2), a_trial(0.2), a_trial(1.0)]
    assert table_row(result_of("worker-kill", late), WorkerKill)[3] == "0.3 NOT MET"
    # Where the target depends on the trial, the median of those counts.
    slow = [a_trial(9.0).model_copy(update={"target_detected_s": target}) for target in (8.0, 10.0, 12.0)]
    assert table_row(result_of("worker-hang", slow), WorkerHang)[3] == "10"
    assert table_row(result_of("worker-hang", slow[:1]), WorkerHang)[3] == "8 NOT MET"
    one_late = [*slow, a_trial(31.0).model_copy(update={"target_detected_s": 10.0})]
    assert table_row(result_of("worker-hang", one_late), WorkerHang)[3] == "10 NOT MET"
