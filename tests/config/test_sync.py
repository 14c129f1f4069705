"""Environments to compare: what they may set, and what is refused."""

from typing import Any

import pytest

from convoy.config.benchmark import resolve_bench
from convoy.config.errors import ConfigError

TCP = {"name": "TCP", "set": {"NCCL_IB_DISABLE": 1}}
EFA: dict[str, Any] = {"name": "EFA", "set": {"NCCL_IB_DISABLE": None}}


def test_numbers_become_text_and_null_stays() -> None:
    found = resolve_bench({"sync": {"environments": [TCP, EFA], "claims": "rdma"}}, {}).sync
    assert [each.set for each in found.environments] == [{"NCCL_IB_DISABLE": "1"}, {"NCCL_IB_DISABLE": None}]


@pytest.mark.parametrize(
    ("sync", "told"),
    [
        ({"environments": [TCP]}, "must be two or more, of different names"),
        ({"environments": [TCP, TCP]}, "must be two or more, of different names"),
        ({"environments": [{"name": "A"}, {"name": "B"}]}, "must set different variables"),
        ({"share": False}, "share = false: only with environments"),
        ({"claims": "rdma"}, "only with environments"),
        ({"environments": [TCP, EFA], "pairs": 5}, "sync.pairs = 5"),
        ({"environments": [TCP, {"name": "PATH", "set": {"LD_PRELOAD": "x"}}]}, "LD_PRELOAD: must begin with NCCL_"),
    ],
)
def test_what_cannot_be_compared_is_one_line(sync: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve_bench({"sync": sync}, {})
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
