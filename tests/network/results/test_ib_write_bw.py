"""Rows of ib_write_bw, in the columns that perftest's sources print, 4.5 and newer."""

import pytest

from convoy.network.results.ib_write_bw import PerftestRow, parse_ib_write_bw


def output(unit: str, *rows: str) -> str:
    header = f" #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]"
    return "\n".join([" Mtu             : 4096[B]", "-" * 80, header, *rows, "-" * 80])


@pytest.mark.parametrize(("unit", "factor"), [("MB/sec", 2**20), ("MiB/sec", 2**20), ("Gb/sec", 125_000_000)])
def test_a_row_s_rate_is_in_bytes_per_second_whatever_its_unit(unit: str, factor: int) -> None:
    rows = parse_ib_write_bw(output(unit, " 65536      5000             200.50            100.25\t\t   0.001500"))
    assert rows == [PerftestRow(65536, 5000, 200.5 * factor, 100.25 * factor, pytest.approx(1500))]


def test_lines_between_rows_are_left_out_and_a_missing_peak_is_none() -> None:
    text = output("MB/sec", "Conflicting CPU frequency values detected: 1 != 2.", " 2   1000   0.00   1.09   0.57")
    assert parse_ib_write_bw(text) == [PerftestRow(2, 1000, None, 1.09 * 2**20, pytest.approx(0.57e6))]


@pytest.mark.parametrize(
    ("text", "reason"),
    [("Couldn't connect to 10.0.0.1:18515", "no line with"), (output("MB/sec"), "without a row"),
     (output("TB/sec", "1 1 1 1 1"), "TB/sec: must be in")],
)  # fmt: skip
def test_an_output_without_rows_is_an_error(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_ib_write_bw(text)
