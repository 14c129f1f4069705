"""What the drills of nodes, networks, notices and storage choose, prepare and look for, without a gang."""

import contextlib
import os
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from convoy.checkpoint.format import part_record_name, shards_prefix
from convoy.config.loader import read_overrides, resolve
from convoy.drills.fault import DrillOptions, Fault, GangProgress, GangSize
from convoy.drills.faults.node import Node0Kill, NodeKill, Partition
from convoy.drills.faults.notice import RebalanceNotice, SpotNotice
from convoy.drills.faults.save import KillDuringRestore, is_writing, open_agent_board
from convoy.drills.faults.storage import StorageFull
from convoy.drills.faults.worker import RandomFaults
from convoy.drills.gang import DrillError
from convoy.drills.trial import config_of
from convoy.gang.notices.imds import Imds
from convoy.gang.workers.board import Board, Marker
from convoy.job.events.registry import GenerationStarted, StepDone
from convoy.storage import open_store
from tests.drills.trials import a_fault


def progress(
    step: int, committed: int | None = None, generation: int = 1, injected: tuple[float, ...] = ()
) -> GangProgress:
    done = StepDone(step=step, loss=1.0, grad_norm=1.0, lr=1.0, tokens=8, seconds=1.0, generation=generation)
    return GangProgress([done] * bool(step), 0, generation, committed, injected)


@pytest.mark.parametrize("kind", [NodeKill, Node0Kill, Partition, SpotNotice])
def test_victims_differ_from_trial_to_trial_and_are_the_same_within_one(kind: type[Fault], tmp_path: Path) -> None:
    faults = [a_fault(kind, tmp_path, random=Random(seed)) for seed in range(50)]
    victims = [fault.victim for fault in faults]  # type: ignore[attr-defined]
    assert victims == [fault.victim for fault in faults]  # type: ignore[attr-defined]
    expected = {NodeKill: {1, 2}, Node0Kill: {0}}
    assert set(victims) == expected.get(kind, {0, 1, 2})  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", [NodeKill, Node0Kill, Partition])
def test_a_gang_of_one_node_cannot_lose_one(kind: type[Fault], tmp_path: Path) -> None:
    assert kind(GangSize(1, 2), Random(0), tmp_path).missing_requirement() == "a second node"


# Notices.


def asks(fault: Fault, node: int) -> Imds:
    return Imds(fault.environment(node))


def test_only_the_victim_s_machine_has_notice_and_the_one_after_it_has_none(tmp_path: Path) -> None:
    fault = a_fault(SpotNotice, tmp_path)
    assert isinstance(fault, SpotNotice)
    path = "meta-data/spot/instance-action"
    with ExitStack() as stack:
        fault.setup(stack)
        assert [asks(fault, node).get(path) for node in range(3)] == [None] * 3
        fault.inject(None)  # type: ignore[arg-type]
        told = [node for node in range(3) if asks(fault, node).get(path) is not None]
        assert told == [fault.victim]
        fault.repair(None)  # type: ignore[arg-type]
        assert asks(fault, fault.victim).get(path) is None


def test_a_rebalance_comes_without_any_commit_before_it(tmp_path: Path) -> None:
    fault = a_fault(RebalanceNotice, tmp_path)
    assert not fault.should_inject(progress(5))
    assert fault.should_inject(progress(23))


# Saves and restores.


def test_a_part_is_being_written_from_its_first_byte_to_its_record(tmp_path: Path) -> None:
    store, prefix = open_store(str(tmp_path)), shards_prefix(1, 20, "attempt")
    assert not is_writing(store, 1)
    store.write(f"{prefix}00000.000.bin", b"some")
    assert not is_writing(store, 1)
    store.write(f"{prefix}00001.000.bin", b"some")
    assert is_writing(store, 1)
    store.write(prefix + part_record_name(1), b"{}")
    assert not is_writing(store, 1)
    assert is_writing(store, 0)


def test_an_agent_s_board_is_read_from_outside() -> None:
    with contextlib.closing(Board.create(2)) as board:
        Marker(board.path, 1).enter("restore")
        with contextlib.closing(open_agent_board(os.getpid(), 2)) as seen:
            assert [seen.read(rank).phase for rank in range(2)] == ["start", "restore"]


def test_an_agent_without_workers_has_no_board() -> None:
    with pytest.raises(DrillError, match="has no progress board"):
        open_agent_board(os.getpid(), 1)


def test_the_second_kill_waits_for_the_generation_after_the_first(tmp_path: Path) -> None:
    fault = a_fault(KillDuringRestore, tmp_path)
    assert not fault.should_inject(progress(23))
    assert fault.should_inject(progress(23, committed=20))
    now = (time.time(),)
    assert not fault.should_inject(progress(23, committed=20, injected=now))
    assert fault.should_inject(progress(0, committed=20, generation=2, injected=now))
    fault._killed_in = ("first_step",)  # too late
    assert not fault.should_inject(progress(0, committed=20, generation=2, injected=now * 2))
    assert fault.should_inject(progress(0, committed=20, generation=3, injected=now * 2))
    fault._killed_in = ("first_step", "restore")
    assert not fault.should_inject(progress(30, committed=30, generation=4, injected=now * 3))
    assert fault.expected().generations == 4


# Storage.


def test_the_job_lives_on_what_fails_and_the_next_tier_does_not(tmp_path: Path) -> None:
    fault = a_fault(StorageFull, tmp_path)
    assert isinstance(fault, StorageFull)
    config = resolve({}, read_overrides(" ".join(fault.overrides())))
    assert fault.job_root().startswith(str(fault.mount_point))
    (tier,) = config.checkpoint.tiers
    assert tier == str(tmp_path / "next")
    assert not tier.startswith(str(fault.mount_point))


def test_the_root_fails_soon_after_a_save_or_just_before_the_next_one(tmp_path: Path) -> None:
    faults = [a_fault(StorageFull, tmp_path, random=Random(seed)) for seed in range(20)]
    assert not any(fault.should_inject(progress(11, committed=10)) for fault in faults)
    soon = [fault.should_inject(progress(12, committed=10)) for fault in faults]
    assert {True, False} == set(soon)
    assert all(fault.should_inject(progress(19, committed=10)) for fault in faults)
    assert not any(fault.should_inject(progress(19)) for fault in faults)


def test_the_gang_is_at_work_for_as_long_as_the_fault_lasts(tmp_path: Path) -> None:
    assert config_of(a_fault(StorageFull, tmp_path), DrillOptions(), str(tmp_path)).train.steps == 1_000_000


def test_faults_at_random_times_wait_until_all_nodes_of_an_attempt_are_there(tmp_path: Path) -> None:
    fault = a_fault(RandomFaults, tmp_path)
    fault.should_inject(progress(1))
    fault._next = 0.0  # it is due

    def there(node: int, generation: int, attempt: int = 0) -> GenerationStarted:
        return GenerationStarted(node=node, generation=generation, attempt=attempt)

    first = [there(0, 1), there(1, 1), there(2, 1)]
    assert not fault.should_inject(GangProgress(first[:2], 0, 1, None))
    assert fault.should_inject(GangProgress(first, 0, 1, None))
    assert fault.should_inject(GangProgress([*first, there(0, 2)], 0, 2, None)), (
        "they are there between two generations"
    )
    assert not fault.should_inject(GangProgress([*first, there(0, 3, 1), there(2, 3)], 1, 3, None))
    assert fault.should_inject(GangProgress([*first, there(0, 3, 1), there(2, 3), there(1, 3)], 1, 3, None))
