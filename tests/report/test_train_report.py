"""The report for machines."""

import json

from convoy.display.charts import MAX_POINTS
from convoy.job.events.registry import StepDone
from convoy.report.fold import fold
from convoy.report.train_report import FORMAT, TrainReport, to_json
from tests.report.synthetic import Log, failed_job, finished_job


def test_every_field_is_there_under_its_name() -> None:
    data = to_json(fold(finished_job(), 170))
    assert set(data) == {"format", *TrainReport.model_fields}
    assert data["format"] == FORMAT
    assert data["tokens_per_second"]["n"] == 165
    assert data["outcome"] == {"state": "finished", "reason": "", "notice": "", "cause": None}


def test_it_is_strict_json_even_with_numbers_that_are_not_finite() -> None:
    log = Log(events=failed_job()[:-4])
    log.add(StepDone(step=121, loss=float("nan"), grad_norm=float("inf"), lr=0, tokens=1, seconds=1), rank=0)
    text = json.dumps(to_json(fold(log.events)), allow_nan=False)
    last = json.loads(text)["steps"][-1]
    assert (last["loss"], last["grad_norm"]) == ("NaN", "Infinity")


def test_it_reads_back_as_the_report_it_came_from() -> None:
    report = fold(failed_job(), 170)
    data = to_json(report)
    data.pop("format")
    assert TrainReport.model_validate_json(json.dumps(data)) == report


def test_a_long_job_keeps_few_steps_and_the_last() -> None:
    log = Log()
    log.start()
    log.steps(1, 2000, every=5000)
    steps = to_json(fold(log.events))["steps"]
    assert len(steps) <= MAX_POINTS + 1
    assert (steps[0]["step"], steps[-1]["step"]) == (1, 2000)
