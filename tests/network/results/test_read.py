"""Results of tools other than nccl-tests: recognised by their content, and held against themselves."""

import json

import pytest

from convoy.network.results.read import read_result

PERFTEST = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Connection type : RC\t\tUsing SRQ      : OFF
 Link type       : Ethernet
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      5000             97.72              97.61 \t\t   0.186177
 131072     5000             97.80              97.70 \t\t   {rate}
---------------------------------------------------------------------------------------
"""

IBSTAT = """\
CA 'mlx5_0'
\tCA type: MT4129
\tNumber of ports: 1
\tPort 1:
\t\tState: {state}
\t\tPhysical state: {physical}
\t\tRate: 400
\t\tBase lid: 0
\t\tLink layer: InfiniBand
CA 'mlx5_1'
\tNumber of ports: 1
\tPort 1:
\t\tState: Down
\t\tPhysical state: Disabled
\t\tRate: 2.5
\t\tLink layer: Ethernet
"""

PINGPONG = """\
bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
64      10      =10      1.2k        0.00s     12.07       {micro}       0.19
1k      10      {ack}      20k         0.00s    100.00      10.24       0.10
"""


def iperf3(bits: float, protocol: str = "TCP") -> str:
    total = {"bytes": 1_250_000_000, "seconds": 10.0, "bits_per_second": bits, "retransmits": 3}
    udp = {"jitter_ms": 0.1, "lost_packets": 1, "packets": 100}
    return json.dumps(
        {
            "start": {"version": "iperf 3.12", "test_start": {"protocol": protocol, "num_streams": 1}},
            "intervals": [],
            "end": {
                "streams": [], "sum_sent": total, "sum_received": total, "sender_tcp_congestion": "cubic",
                **({"sum": {**total, **udp}} if protocol == "UDP" else {}),
            },
        }
    )  # fmt: skip


def test_ib_write_bw_names_the_row_whose_rate_is_not_its_messages() -> None:
    result = read_result(PERFTEST.format(rate="0.093174"))
    assert (result.tool, result.pairs[0].tool, result.pairs[0].transport) == ("perftest", "ib_write_bw", "RC Ethernet")
    assert result.pairs[0].rows[0].seconds == pytest.approx(65536 * 8 / 97.61e9)
    assert result.contradictions == ()
    (wrong,) = read_result(PERFTEST.format(rate="0.186348")).contradictions
    assert wrong.where == "line 9"


def test_ibstat_has_state_and_rate_of_each_port_and_names_a_state_that_cannot_be() -> None:
    result = read_result(IBSTAT.format(state="Active", physical="LinkUp"))
    assert [(port.device, port.state, port.rate_gbps, port.transport) for port in result.ports] == [
        ("mlx5_0", "Active", 400.0, "InfiniBand"), ("mlx5_1", "Down", 2.5, "RoCE"),
    ]  # fmt: skip
    assert result.contradictions == ()
    (wrong,) = read_result(IBSTAT.format(state="Active", physical="Polling")).contradictions
    assert wrong.where == "line 4"


def test_fi_pingpong_names_a_rate_that_its_time_does_not_allow_and_lost_answers() -> None:
    result = read_result(PINGPONG.format(micro="5.30", ack="=10"))
    assert [row.size for row in result.pairs[0].rows] == [64, 1024]
    assert [row.seconds for row in result.pairs[0].rows] == pytest.approx([5.30e-6, 10.24e-6])
    assert result.contradictions == ()
    wrong = read_result(PINGPONG.format(micro="6.30", ack="+2")).contradictions
    assert [each.where for each in wrong] == ["line 2", "line 3"]


@pytest.mark.parametrize("protocol", ["TCP", "UDP"])
def test_iperf3_names_a_rate_that_is_not_its_bytes_over_its_time(protocol: str) -> None:
    result = read_result(iperf3(1e9, protocol))
    assert result.pairs[0].transport == ("TCP cubic" if protocol == "TCP" else "UDP cubic")
    assert result.contradictions == ()
    wrong = read_result(iperf3(1.1e9, protocol)).contradictions
    assert {each.where for each in wrong} >= {"end.sum_sent", "end.sum_received"}
