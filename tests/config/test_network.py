"""Sizes and operations of the network suite."""

import pytest

from convoy.config.benchmark import resolve_bench
from convoy.config.errors import ConfigError
from convoy.config.network import NetworkConfig, parse_sizes


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8:64", [8, 16, 32, 64]),
        ("8:100", [8, 16, 32, 64]),
        ("1K:16K:4", [1024, 4096, 16384]),
        ("1M:1M", [2**20]),
        ("1G:2G", [2**30, 2**31]),
        ("3:100:10", [3, 30]),
    ],
)
def test_sizes_grow_by_a_factor_up_to_the_last(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text).sizes() == sizes
    assert NetworkConfig(sizes=text).all_sizes == sizes


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ({"sizes": "8"}, "network.sizes = 8: must be START:END or START:END:FACTOR, such as 8:64M or 1K:1G:4"),
        ({"sizes": "64:8"}, "network.sizes = 64:8: START must be at least 1 byte and at most END"),
        ({"sizes": "0:8"}, "network.sizes = 0:8: START must be at least 1 byte and at most END"),
        ({"sizes": "8:64:1"}, "network.sizes = 8:64:1: FACTOR must be at least 2"),
        ({"sizes": "8k:64k"}, "network.sizes = 8k:64k: must be START:END"),
        ({"operations": ["all_to_one"]}, "network.operations.0 = all_to_one: must be one of"),
        ({"operations": [], "links": []}, "network.operations = []: only with links, or nothing is measured"),
        ({"operations": ["reduce", "reduce"]}, "network.operations = reduce, reduce: must differ from each other"),
        ({"links": ["pairs", "pairs"]}, "network.links = pairs, pairs: must differ from each other"),
        ({"links": ["trunks"]}, "network.links.0 = trunks: must be one of"),
        ({"nccl_settings": ["Ring"]}, "network.nccl_settings.0 = Ring: must have the form ^((Ring|Tree)"),
        (
            {"nccl_settings": ["Ring/LL"] * 2},
            "network.nccl_settings = Ring/LL, Ring/LL: must differ from each other",
        ),
        ({"dtype": "fp8"}, "network.dtype = fp8: must be one of"),
        ({"link_gbps": 0}, "network.link_gbps = 0: must be"),
    ],
)
def test_what_cannot_be_measured_is_one_line(network: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        resolve_bench({"network": network}, {})
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
