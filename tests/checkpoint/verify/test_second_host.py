"""Who reads again what a host has found damaged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.checkpoint.verify.second_host import Finding, Question, confirmed_finding, questions, reader_of
from tests.campaign import examples

pytestmark = pytest.mark.campaign


def finding(rank: int, part: int | None = 0) -> Finding:
    return Finding(rank, part, "a flipped bit")


def test_the_lowest_rank_of_another_host_reads_again() -> None:
    hosts = ["a", "a", "b", "b"]
    assert questions([finding(2)], hosts) == [Question(finding(2), 0)]
    assert questions([finding(1)], hosts) == [Question(finding(1), 2)]


def test_of_a_host_that_finds_much_only_one_finding_is_checked() -> None:
    assert questions([finding(2, 1), finding(3, 0)], ["a", "a", "b", "b"]) == [Question(finding(2, 1), 0)]


def test_where_there_is_one_host_nobody_is_asked() -> None:
    assert questions([finding(0), finding(1)], ["a", "a"]) == []


def test_two_hosts_that_found_the_same_part_need_no_third() -> None:
    hosts = ["a", "b", "b"]
    assert confirmed_finding([finding(1, 3), finding(0, 3)], hosts) == Question(finding(1, 3), 0)
    assert confirmed_finding([finding(1, 3), finding(2, 3)], hosts) is None  # the same host
    assert confirmed_finding([finding(0, 2), finding(1, 3)], hosts) is None


@examples(200)
@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=6), st.data())
def test_every_host_with_a_finding_is_checked_once_by_another(hosts: list[str], data: st.DataObject) -> None:
    ranks = data.draw(st.lists(st.integers(0, len(hosts) - 1), unique=True))
    asked = questions([finding(rank) for rank in ranks], hosts)
    assert all(hosts[q.witness] != hosts[q.finding.rank] for q in asked)
    checked = [hosts[q.finding.rank] for q in asked]
    assert sorted(checked) == (sorted({hosts[rank] for rank in ranks}) if len(set(hosts)) > 1 else [])


def test_a_suspected_part_is_read_by_its_writer_or_the_next_rank_elsewhere() -> None:
    hosts = ["a", "a", "b", "b"]
    assert [reader_of(part, "a", hosts) for part in range(6)] == [2, 2, 2, 3, 2, 2]
    assert [reader_of(part, "gone", hosts) for part in range(4)] == [0, 1, 2, 3]
    assert reader_of(0, "a", ["a", "a"]) is None
