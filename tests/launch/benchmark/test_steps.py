"""What the last step of a benchmark does with its results: whoever wants to hears of a lower rate, once."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from convoy.benchmark.results.files import save_case
from convoy.config.loader import resolve
from convoy.config.notify import TARGET
from convoy.launch.benchmark.steps import _notify_of_regressions
from convoy.storage import open_store
from tests.benchmark.cases import a_case
from tests.sinks import webhook


@pytest.mark.processes
def test_a_rate_that_is_lower_than_in_the_run_before_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = resolve({"root": str(tmp_path), "notify": {"on": ["regressed"]}}, {})
    group: Any = SimpleNamespace(run=config)
    before = a_case(seconds=0.45, seed=1)
    later = before.provenance.model_copy(update={"measured": before.provenance.measured + timedelta(days=1)})
    slower = a_case(seconds=0.5, seed=2).model_copy(update={"provenance": later})
    same = a_case(seconds=0.45, seed=3).model_copy(update={"provenance": later})
    save_case(open_store(str(tmp_path)), "BenchmarkFlow-1", before)
    with webhook() as sink:
        monkeypatch.setenv(TARGET, sink.url)
        _notify_of_regressions(group, "BenchmarkFlow-2", [same])
        assert sink.titles == []
        for _ in range(2):
            _notify_of_regressions(group, "BenchmarkFlow-3", [slower])
    assert sink.titles == ["Convoy: BenchmarkFlow-3 is slower than before"]
    assert f"First cause: {slower.key}: 0.9" in sink.bodies[0]
