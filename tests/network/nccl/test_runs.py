"""Processes that share communicators are one run, with or without a communicator of all ranks; others are two runs."""

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest

from convoy.config.errors import ConfigError
from convoy.display.markdown import to_markdown
from convoy.network.nccl.log import read_lines
from convoy.network.nccl.verdict import LogReport, judge
from convoy.network.pages.nccl import log_page
from tests.network.nccl.written import VERSIONS, Carrier, Job, Lines, Version

Groups = Sequence[Sequence[int]]
"""Communicators of one dimension of a mesh, each by the processes in it."""

HSDP: list[Groups] = [[range(4), range(4, 8)], [(rank, rank + 4) for rank in range(4)]]
"""Eight processes on two hosts: shards within a host, replicas between the two."""

WORLD: Groups = [range(8)]

TENSOR: list[Groups] = [[(rank, rank + 1) for rank in range(0, 8, 2)], [range(0, 8, 2), range(1, 8, 2)]]
"""Pairs of tensor-parallel ranks within a host, and the data-parallel ranks."""

SINCE_2_18 = pytest.mark.parametrize("version", [v for v in VERSIONS.values() if v.start], ids=lambda v: v.name)


def written(
    *dimensions: Groups,
    carrier: Carrier = "efa+gdr",
    version: Version = VERSIONS["2.27.7"],
    host: str = "node-{}",
    first_pid: int = 100,
) -> Lines:
    """What eight processes on two hosts write of the communicators of a mesh."""
    run = Job(version, carrier, ranks=8, per_host=4, host=host, first_pid=first_pid)
    lines = [line for rank in range(8) for line in run.rank_lines(rank)[: -len(run.communicator_lines(rank))]]
    for number, groups in enumerate(dimensions):
        for group in groups:
            per_host = sum(process < 4 for process in group) or len(group)
            job = replace(run, ranks=len(group), per_host=per_host)
            name = f"0x{first_pid}{number}{group[0]}{0 if host == 'node-{}' else 1}"
            for rank, process in enumerate(group):
                messages = (line.partition("NCCL INFO ")[2] for line in job.communicator_lines(rank, name=name))
                device = f"cudaDev {process % 4}"
                lines += [run.writer(process)(re.sub(r"cudaDev \d", device, message)) for message in messages]
    return lines


def judged(lines: Lines) -> LogReport:
    return judge(read_lines(f"{line}\n".encode() for line in lines))


def refusal(lines: Lines) -> str:
    with pytest.raises(ConfigError, match=r"these are logs of more than one run; pass the files of one") as raised:
        judged(lines)
    return str(raised.value)


@SINCE_2_18
@pytest.mark.parametrize("mesh", [HSDP, HSDP[::-1], TENSOR], ids=["hsdp", "replicas first", "tensor"])
@pytest.mark.parametrize(("carrier", "verdict"), [("efa+gdr", "rdma+gdr"), ("socket", "tcp")])
def test_a_run_without_a_communicator_of_all_ranks_is_one_run(
    mesh: list[Groups], carrier: Carrier, verdict: str, version: Version
) -> None:
    report = judged(written(*mesh, carrier=carrier, version=version))
    assert [each.verdict for each in report.ranks] == [verdict] * 8
    assert {each.rank for each in report.ranks} == {None}
    assert sorted(each.host for each in report.ranks) == ["node-0"] * 4 + ["node-1"] * 4


@SINCE_2_18
@pytest.mark.parametrize("mesh", [HSDP, TENSOR])
def test_communicators_of_a_mesh_do_not_hide_the_one_of_all_ranks(mesh: list[Groups], version: Version) -> None:
    report = judged(written(WORLD, *mesh, version=version))
    assert [each.rank for each in report.ranks] == list(range(8))
    assert {(each.verdict, each.ranks) for each in report.ranks} == {("rdma+gdr", 8)}
    assert [len(each.communicators) for each in report.ranks] == [3] * 8


def test_a_mesh_within_one_host_has_all_its_ranks() -> None:
    """Ranks of the same number in other communicators of the same size are others."""
    within = [line.replace("node-1", "node-0").replace("nNodes 2", "nNodes 1") for line in written(*HSDP)]
    report = judged([line.replace("NET/AWS Libfabric/2(0)/GDRDMA", "P2P/CUMEM") for line in within])
    assert [each.verdict for each in report.ranks] == ["harmless"] * 8


def test_one_rank_that_fell_back_is_the_verdict_of_such_a_run() -> None:
    good, bad = written(*HSDP), written(*HSDP, carrier="socket")
    lines = [line for line in good if ":103:" not in line] + [line for line in bad if ":103:" in line]
    report = judged(lines)
    assert sorted(each.verdict for each in report.ranks) == ["rdma+gdr"] * 7 + ["tcp"]
    assert report.verdict == "tcp"


def test_the_last_start_of_such_a_run_wins() -> None:
    again = written(*HSDP, carrier="socket", first_pid=500)
    report = judged([*written(*HSDP), *again])
    assert [each.verdict for each in report.ranks] == ["tcp"] * 8


def test_two_runs_on_other_hosts_are_refused() -> None:
    other = written(*HSDP, host="other-{}")
    assert refusal([*written(*HSDP), *other]).startswith(
        "FILE: 8 ranks on node-0, node-1 share no communicator with 8 on other-0, other-1"
    )
    assert "share no communicator" in refusal([*written(*HSDP), *Job(ranks=4, first_pid=900).lines()])


def test_two_groups_with_a_communicator_each_are_refused() -> None:
    assert "rank 0 is on node-0 and on node-1" in refusal(written(HSDP[0]))


def test_two_processes_that_are_one_rank_of_one_communicator_are_refused() -> None:
    lines = written(*HSDP)
    other = [line.replace(":100:", ":900:") for line in lines if ":100:" in line]
    assert "rank 0 of communicator 0x100000 is process 100 on node-0 and process 900 on node-0" in refusal(
        lines + other
    )


def test_splits_whose_id_is_not_unique_are_no_contradiction() -> None:
    """NCCL 2.18 derives the id of a split from the communicator and the color alone."""
    split = [
        line.replace("busId 1c0 commId", "busId 1c0 parent 0x7f01 color 0 key 0 commId") for line in written(*HSDP)
    ]
    same = [f"{line.partition('commId')[0]}commId 0xabc - Init START" if "commId" in line else line for line in split]
    assert [each.rank for each in judged([*written(WORLD), *same]).ranks] == list(range(8))


def test_the_page_names_the_hosts_of_ranks_without_a_number() -> None:
    lines = written(*HSDP, carrier="socket")
    text = to_markdown(log_page(judged(lines)))
    assert "8 on 2 hosts" in text
    assert "8 ranks on 2 hosts: TCP" in text
