"""Verdicts come from the path of channels, per rank, and the last initialisation wins."""

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convoy.config.errors import ConfigError
from convoy.network.nccl.log import read_lines
from convoy.network.nccl.verdict import LogReport, judge
from tests.network.nccl.written import VERSIONS, Carrier, Job, Lines, Version

VERDICTS: dict[Carrier, str] = {
    "efa+gdr": "rdma+gdr",
    "efa": "rdma",
    "ib+gdr": "rdma+gdr",
    "socket": "tcp",
    "libfabric tcp": "tcp",
    "silent": "unknown",
}

every_version = pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)


def judged(lines: Lines) -> LogReport:
    return judge(read_lines(f"{line}\n".encode() for line in lines))


def verdicts(lines: Lines) -> list[str]:
    return [report.verdict for report in judged(lines).ranks]


@every_version
@pytest.mark.parametrize("carrier", VERDICTS)
def test_every_version_of_nccl_says_what_carried_the_traffic(version: Version, carrier: Carrier) -> None:
    report = judged(Job(version, carrier).lines())
    assert [each.rank for each in report.ranks] == [0, 1, 2, 3]
    assert {each.verdict for each in report.ranks} == {report.verdict} == {VERDICTS[carrier]}
    first = report.ranks[0]
    assert (first.nccl, first.ranks, first.host) == (f"{version.name}+cuda12.4", 4, "node-0")
    if carrier == "efa+gdr":
        assert (first.plugin, first.provider, first.protocol, first.nics) == ("1.16.3", "efa", "RDMA", 4)
        assert first.carrier == "efa"
        assert first.paths == {"NET/AWS Libfabric/GDRDMA": 1, "P2P": 1, "SHM": 1}
        assert first.fix is None
    elif carrier == "ib+gdr":
        assert (first.carrier, first.nics) == ("ib", 2)


@every_version
def test_a_socket_within_one_node_is_harmless(version: Version) -> None:
    assert set(verdicts(Job(version, "socket", per_host=4).lines())) == {"harmless"}


@every_version
@pytest.mark.parametrize("carriers", [("efa+gdr", "socket"), ("socket", "efa+gdr"), ("ib+gdr", "libfabric tcp")])
def test_the_last_initialisation_wins_in_new_processes(version: Version, carriers: tuple[Carrier, Carrier]) -> None:
    before, after = (Job(version, carrier, first_pid=pid) for carrier, pid in zip(carriers, (100, 200), strict=True))
    assert set(verdicts([*before.lines(), *after.lines()])) == {VERDICTS[carriers[1]]}


@every_version
@pytest.mark.parametrize("carriers", [("efa+gdr", "socket"), ("socket", "efa+gdr"), ("efa", "efa+gdr")])
def test_the_last_initialisation_wins_in_the_same_processes(
    version: Version, carriers: tuple[Carrier, Carrier]
) -> None:
    before, after = Job(version, carriers[0]), Job(version, carriers[1])
    again = [line for rank in range(4) for line in after.rank_lines(rank)]
    assert set(verdicts([*before.lines(), *again])) == {VERDICTS[carriers[1]]}


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(VERSIONS)), st.lists(st.sampled_from(sorted(VERDICTS)), min_size=2, max_size=2), st.data()
)
def test_any_interleaving_of_the_ranks_gives_the_same_verdicts(
    version: str, carriers: list[Carrier], data: st.DataObject
) -> None:
    jobs = [Job(VERSIONS[version], carrier, first_pid=pid) for carrier, pid in zip(carriers, (100, 200), strict=True)]
    streams = [[line for job in jobs for line in job.rank_lines(rank)] for rank in range(4)]
    expected = judged([line for stream in streams for line in stream])
    turns = data.draw(st.permutations([rank for rank, stream in enumerate(streams) for _ in stream]))
    left = [iter(stream) for stream in streams]
    assert judged([next(left[rank]) for rank in turns]) == expected


@pytest.mark.parametrize(
    "prefix",
    [
        "[1,0]<stdout>:",
        "[1,13]<stderr>:",
        "0: ",
        "(RayTrainWorker pid=4711, ip=10.0.0.7) ",
        "\x1b[36m(RayTrainWorker pid=4711, ip=10.0.0.7)\x1b[0m ",
        "2025-03-03T10:11:12.123456789Z ",
        "2025-03-03T10:11:12.123456789Z stdout F ",
        "| 2025-03-03 10:11:12 | ",
        "worker-0 | 10:11:12 ",
        '{"log":"',
        "2025-05-16T16:39:51.208-07:00",
    ],
)
def test_what_a_launcher_puts_before_a_line_does_not_matter(prefix: str) -> None:
    ending = '\\n","stream":"stdout"}' if prefix.startswith("{") else ""
    plain = Job().lines()
    assert judged([f"{prefix}{line}{ending}" for line in plain]) == judged(plain)


def test_lines_that_interrupt_each_other_are_all_read() -> None:
    plain = Job().lines()
    head = plain[5].partition("NCCL INFO ")[0]
    assert judged([f"{head}NCCL INFO {line}" for line in plain]) == judged(plain)
    assert judged(["   ".join(plain)]) == judged(plain)


def test_a_host_that_someone_hid_is_a_host() -> None:
    assert judged(Job(host="<host-{}>").lines()).ranks[3].host == "<host-1>"


def test_a_plugin_that_loads_and_a_network_that_is_chosen_prove_nothing() -> None:
    loaded = [line for line in Job().lines() if "Channel" not in line]
    report = judged(loaded)
    assert report.verdict == "unknown"
    assert "no line shows the path of a channel" in report.ranks[0].why


def test_libfabric_whose_provider_is_not_in_the_log_proves_nothing() -> None:
    assert judged([line for line in Job().lines() if "provider" not in line]).verdict == "unknown"


def test_the_name_of_a_device_proves_efa_where_the_provider_is_missing() -> None:
    job = Job()
    named = [
        line.replace("Using transport protocol RDMA", "x").replace("NET/OFI x", "NET/AWS Libfabric : x")
        if "provider" not in line
        else job.writer(int(line.split(":")[1]) - 100)(
            "NET/AWS Libfabric : GPU Direct RDMA Enabled for HCA 0 'rdmap16s27'"
        )
        for line in job.lines()
    ]
    assert {report.carrier for report in judged(named).ranks} == {"efa"}


def test_rdma_that_the_kernel_imitates_is_no_rdma() -> None:
    lines = [line.replace("[0]mlx5_0", "[0]rxe0").replace("[1]mlx5_1", "[1]rxe1") for line in
             Job(carrier="ib+gdr").lines()]  # fmt: skip
    assert judged(lines).verdict == "tcp"


def test_a_network_that_is_not_known_proves_nothing() -> None:
    lines = [line.replace("NET/IB/", "NET/Quantum/") for line in Job(carrier="ib+gdr").lines()]
    assert judged(lines).verdict == "unknown"


def test_gpudirect_of_some_channels_is_rdma_without_it() -> None:
    lines = Job(ranks=2, per_host=1).lines()
    at = next(i for i, line in enumerate(lines) if "GDRDMA" in line)
    lines[at] = lines[at].replace("/GDRDMA", "")
    report = judged(lines)
    assert report.verdict == "rdma"
    assert "1 of 2 network channels with GPUDirect" in report.ranks[0].why
    assert report.ranks[0].fix


def test_one_rank_that_fell_back_is_the_verdict_of_the_run() -> None:
    good, bad = Job(), Job(carrier="socket")
    lines = [line for rank in range(4) for line in (bad if rank == 3 else good).rank_lines(rank)]
    report = judged(lines)
    assert [each.verdict for each in report.ranks] == ["rdma+gdr", "rdma+gdr", "rdma+gdr", "tcp"]
    assert report.verdict == "tcp"
    assert not report.ranks[3].meets("efa")


def test_a_rank_in_the_middle_of_its_host_has_the_verdict_of_those_that_carry_its_traffic() -> None:
    report = judged(Job(ranks=6, per_host=3).lines())
    assert [each.verdict for each in report.ranks] == ["rdma+gdr"] * 6
    assert "other ranks have channels via NET/AWS Libfabric" in report.ranks[1].why
    (alone,) = judged(Job(ranks=6, per_host=3).rank_lines(1)).ranks
    assert alone.verdict == "unknown"


def test_a_communicator_within_the_host_does_not_hide_the_one_between_hosts() -> None:
    job = Job(carrier="efa+gdr")
    inner = replace(job, ranks=2, carrier="socket")
    lines = [line for rank in range(4) for line in [*job.rank_lines(rank), *inner_of(inner, rank, job)]]
    report = judged(lines)
    assert {each.verdict for each in report.ranks} == {"rdma+gdr"}
    assert [c.verdict for c in report.ranks[0].communicators] == ["rdma+gdr", "harmless"]


def inner_of(inner: Job, rank: int, outer: Job) -> Lines:
    """Lines of a communicator of one host's two ranks, written by the outer job's rank."""
    message = [
        line.partition("NCCL INFO ")[2] for line in inner.communicator_lines(rank % 2, "0x7f02", f"0x{rank // 2}")
    ]
    return [outer.writer(rank)(each) for each in message]


def test_a_second_communicator_that_nothing_used_yet_does_not_take_the_evidence_away() -> None:
    job = Job()
    unused = [line for rank in range(4) for line in job.communicator_lines(rank, "0x7f02") if "Channel 0" not in line]
    assert judged([*job.lines(), *unused]).verdict == "rdma+gdr"
    other = [line.replace("AWS Libfabric", "Socket") for line in unused]
    assert judged([*job.lines(), *other]).verdict == "tcp"


def test_channels_that_connect_on_first_use_count() -> None:
    lines = Job(VERSIONS["2.27.7"]).lines()
    late = [line for line in lines if "Channel 0" in line]
    assert judged([line for line in lines if line not in late] + late) == judged(lines)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("NCCL_NET set by environment to Socket", "NCCL_NET is set to Socket"),
        ("NET/OFI Unable to find a protocol that worked.  Failing initialization.", "could not start"),
        ("NET/OFI Only EFA provider is supported", "could not start"),
        ("NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libfabric.so.1: cannot open shared object file",
         "what it needs cannot be loaded"),
        ("NET/Plugin: Failed to find ncclNetPlugin_v10 symbol.", "found no network plugin"),
        ("NCCL_IB_DISABLE set by environment to 1.", "NCCL_IB_DISABLE=1"),
        ("Failed to open libibverbs.so[.1]", "libibverbs is missing"),
    ],
)  # fmt: skip
def test_tcp_comes_with_its_first_cause_and_a_fix(line: str, cause: str) -> None:
    job = Job(carrier="socket")
    report = judged([job.writer(0)(line), *job.lines()]).ranks[0]
    assert report.cause is not None
    assert cause in report.cause
    assert report.fix


def test_the_cause_of_libfabric_over_tcp_is_its_provider() -> None:
    report = judged(Job(carrier="libfabric tcp").lines()).ranks[0]
    assert report.cause == "libfabric offers no EFA device, or FI_PROVIDER excludes it: provider tcp;ofi_rxm"


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (Job(ranks=8, first_pid=900), "runs of 4 and 8 ranks"),
        (Job(host="other-{}"), "rank 0 is on node-0 and on other-0"),
        (Job(VERSIONS["2.30.4"], first_pid=900), "NCCL has versions 2.27.7+cuda12.4 and 2.30.4+cuda12.4"),
    ],
)
def test_ranks_of_two_runs_are_refused(other: Job, text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        judged([*Job().lines(), *other.lines()])


def test_several_gpus_in_one_process_are_several_ranks() -> None:
    job = Job(per_host=2)
    lines = [line.replace(f":{100 + r}:", f":{500 + r // 2}:") for r in range(4) for line in job.rank_lines(r)]
    assert verdicts(lines) == ["rdma+gdr"] * 4
