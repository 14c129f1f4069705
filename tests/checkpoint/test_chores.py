"""Between saves every part is read back once, by another host where there is one, and nobody who is busy is asked."""

import pytest

from convoy.checkpoint.chores import Busy, chores, part_to_read
from convoy.checkpoint.messages import AfterCommit
from convoy.job.lineage import CommitRef

TIERS = ["root", "near", "far"]
REF = CommitRef(generation=1, step=5)
IDLE = Busy()


def asked(rank: int = 0, tier: int = 0, busy: Busy = IDLE, verify: bool = True) -> AfterCommit:
    return chores(REF, tier, TIERS, rank, ["a", "a", "b", "b"], 3, verify, busy)


@pytest.mark.parametrize("hosts", [["a"], ["a", "a"], ["a", "b", "c"], ["a", "a", "b", "b", "c", "c"], ["a", "b", "a"]])
def test_each_part_is_read_by_one_rank_in_each_turn(hosts: list[str]) -> None:
    for turn in range(4):
        read = [part_to_read(rank, hosts, turn) for rank in range(len(hosts))]
        assert sorted(part for part, _ in read) == list(range(len(hosts)))
        assert [away for _, away in read] == [hosts[part] != hosts[rank] for rank, (part, _) in enumerate(read)]


def test_a_commit_is_read_back_where_it_is_and_where_it_is_copied_to() -> None:
    request = asked(rank=1, tier=1)
    assert (request.tier, request.copy_to, request.prune) == ("near", ["root", "far"], False)
    assert (request.verify_part, request.verify_copies, request.drop_cache) == (3, 3, False)
    assert asked(rank=0).prune
    unread = asked(verify=False)
    assert (unread.verify_part, unread.verify_copies, unread.copy_to) == (None, None, ["near", "far"])


def test_what_some_rank_is_busy_with_is_not_asked_and_the_rest_is() -> None:
    reading, copying = asked(busy=Busy(reading_back=True)), asked(busy=Busy(copying=True))
    assert (reading.verify_part, reading.copy_to, reading.verify_copies) == (None, ["near", "far"], 2)
    assert (copying.verify_part, copying.copy_to, copying.verify_copies) == (2, [], None)
    both = asked(busy=Busy(True, True))
    assert (both.verify_part, both.copy_to, both.verify_copies, both.prune) == (None, [], None, True)
