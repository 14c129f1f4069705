"""Rows of fi_pingpong, in the columns that its source prints."""

import pytest

from convoy.network.results.fi_pingpong import FiPingpongRow, parse_fi_pingpong

HEADER = "bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec"


def row(size: str, sent: int, acknowledged: str, usec: float, rate: float) -> str:
    return f"{size:<8}{sent:<8}{acknowledged:<9}{'20':<8}{0.0:8.2f}s{rate:10.2f}{usec:11.2f}{1 / usec:11.2f}"


def test_each_row_is_a_size_with_half_of_its_round_trip() -> None:
    text = "\n".join(
        ["[debug] util", HEADER, row("64", 10, "=10", 8.0, 8.0), row("1.5k", 10, "=10", 16.0, 96.0), "x y"]
    )
    assert parse_fi_pingpong(text) == [
        FiPingpongRow(64, pytest.approx(8e-6), 8e6, True),
        FiPingpongRow(1536, pytest.approx(16e-6), 96e6, True),
    ]


@pytest.mark.parametrize(("text", "size"), [("0", 0), ("768", 768), ("3k", 3072), ("1.5m", 1572864), ("6m", 6291456)])
def test_sizes_of_the_whole_sweep_are_exact(text: str, size: int) -> None:
    assert parse_fi_pingpong(f"{HEADER}\n{row(text, 10, '=10', 8.0, 1.0)}")[0].size == size


def test_a_row_whose_messages_did_not_all_come_back_says_so() -> None:
    assert not parse_fi_pingpong(f"{HEADER}\n{row('64', 10, '-2', 8.0, 1.0)}")[0].are_all_answered


@pytest.mark.parametrize("text", ["", "fi_getinfo(): util/pingpong.c, ret=-61 (No data available)", HEADER])
def test_an_output_without_rows_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="fi_pingpong"):
        parse_fi_pingpong(text)
