"""Rows of what steps take on a CPU, which a fit is made of."""

import json
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import cpu_steps
import pytest
from cpu_steps import CONFIGURATIONS, Configuration, busy_seconds, own_seconds, rows_of_rank, text_of

from convoy.catalog.measured_machine import MeasuredMachine
from convoy.config.run import RunConfig
from convoy.gang.task import Assignment
from tests.planner.pair import Meeting, meet
from tests.ranks import on_ranks

SMALL = Configuration("small", "llama", 64, 1, 32, 2, "fp32", "full", passes=2, vocabulary=1024)


def _rows(rank: int, port: int, root: str, data: dict[int, tuple[str, str]]) -> list[dict[str, Any]]:
    ranks = meet(rank, Meeting("127.0.0.1", port, "lo"))
    assignment = cast("Assignment", SimpleNamespace(config=cpu_steps._config(SMALL, 2, root)))
    return rows_of_rank(assignment, ranks, cast("Any", None), [SMALL], data, rounds=1)


def test_a_rank_beside_another_and_both_together_are_a_row_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_steps, "PROBE_SECONDS", 0.02)
    data = {SMALL.length: cpu_steps._prepared(cpu_steps._config(SMALL, 1, str(tmp_path)))}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    alone, both = on_ranks(2, _rows, port, str(tmp_path), data)[0]
    assert (alone["ranks"], both["ranks"]) == (1, 2)
    for row in (alone, both):
        config, machine = RunConfig.model_validate(row["config"]), MeasuredMachine.model_validate(row["machine"])
        assert config.train.global_batch == 2 * 2 * row["ranks"]
        assert (machine.ranks, machine.dtype) == (row["ranks"], "fp32")
        assert (machine.gather is None) == (row["ranks"] == 1)
        assert row["seconds"] == pytest.approx(row["blocks"][0], abs=1e-6)


def test_a_file_has_a_row_on_each_line() -> None:
    text = text_of({"rounds": 2}, [{"name": "a"}, {"name": "b"}])
    assert json.loads(text) == {"rounds": 2, "rows": [{"name": "a"}, {"name": "b"}]}
    assert '{"name": "a"},' in text.splitlines()


def test_configurations_are_told_apart_by_their_names_and_can_be_trained() -> None:
    assert len({each.name for each in CONFIGURATIONS}) == len(CONFIGURATIONS)
    for each, ranks in ((each, ranks) for each in CONFIGURATIONS for ranks in (1, 2)):
        config = RunConfig.model_validate(each.tree(ranks))
        assert config.train.global_batch % (ranks * config.train.micro_batch) == 0


def test_what_this_process_computes_keeps_cores_busy_and_is_no_other_s() -> None:
    busy, own = busy_seconds(), own_seconds()
    while own_seconds() - own < 0.1:
        pass
    assert busy_seconds() - busy > 0.05  # which the kernel counts in hundredths
    assert own_seconds() - own < 1
