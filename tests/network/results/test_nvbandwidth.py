"""JSON of nvbandwidth, from the format of its source."""

import json
from typing import Any

import pytest

from convoy.benchmark.results.imported import imported_cases
from convoy.network.results.read import read_result
from tests.benchmark.cases import PROVENANCE


def document(**changed: Any) -> str:
    """Of two GPUs: reads of each from the other, and a test that this machine has not."""
    test = {
        "name": "device_to_device_memcpy_read_ce",
        "status": "Passed",
        "bandwidth_description": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
        "bandwidth_matrix": [["N/A", "276.07"], ["276.36", "N/A"]],
        "sum": 552.43,
    }
    waived = {"name": "multinode_device_to_device_memcpy_read_ce", "status": "Waived"}
    root = {"CUDA Runtime Version": "12080", "Driver Version": "570.86", "testcases": [test | changed, waived]}
    return json.dumps({"nvbandwidth": root})


def test_each_measured_test_is_a_case_with_its_matrix() -> None:
    result = read_result(document())
    assert result.tool == "nvbandwidth"
    assert result.contradictions == ()
    (case,) = imported_cases(result, PROVENANCE.measured)
    assert case.name == "device_to_device_memcpy_read_ce"
    assert case.values == {"bytes_per_second.0.1": 276.07e9, "bytes_per_second.1.0": 276.36e9}
    assert case.provenance.versions == {"cuda": "12080", "driver": "570.86"}
    assert case.hardware.ranks == 2


def test_what_cannot_be_true_is_named() -> None:
    (wrong,) = read_result(document(sum=600.0)).contradictions
    assert wrong.where == "testcases[0]"
    assert wrong.text == "device_to_device_memcpy_read_ce: sum of 600 GB/s, but the matrix has 552.43"
    (empty,) = read_result(document(bandwidth_matrix=None, sum=None)).contradictions
    assert "Passed, without a bandwidth" in empty.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps({"nvbandwidth": {"error": "no CUDA device"}}), "nvbandwidth has no test: no CUDA device"),
        (document(bandwidth_matrix=[["quick"]]), r"testcases\[0\]: bandwidth_matrix and sum must be numbers"),
    ],
)
def test_what_cannot_be_read_is_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_result(text)
