"""What a job takes of each machine's own memory."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convoy.model.counts import parameter_count
from convoy.planner.memory.host import host_memory
from convoy.planner.memory.rank import rank_memory
from tests.planner.grid import GPT, workload
from tests.planner.workloads import GIB, P4D

HOST = replace(P4D, gpu="cpu", ranks=2, memory_bytes=32 * GIB, host_bytes=64 * GIB)


def test_machines_together_stage_two_copies_of_the_state() -> None:
    for nodes in (1, 3, 16):
        job = workload(GPT, P4D, nodes, 1)

        assert host_memory(job, 0).staged_bytes * nodes >= 2 * 12 * parameter_count(job.model)


def test_states_are_in_host_memory_where_they_are_offloaded() -> None:
    whole = 16 * parameter_count(workload(GPT, P4D, 1, 1).model)

    assert host_memory(workload(GPT, P4D, 2, 1), GIB).states_bytes == 0
    assert host_memory(workload(GPT, P4D, 2, 1, cpu_offload=True), GIB).states_bytes == whole // 2


def test_all_tensors_are_in_host_memory_where_there_is_no_gpu() -> None:
    job = workload(GPT, HOST, 1, 1)
    peak = rank_memory(job).peak_bytes

    assert peak > 16 * parameter_count(job.model) / 2
    assert host_memory(job, peak).states_bytes == 2 * peak


@given(gib=st.integers(1, 400), ranks=st.integers(1, 4), micro_batch=st.sampled_from([1, 4, 16]))
def test_without_a_gpu_a_rank_and_its_host_have_room_or_lack_it_alike(gib: int, ranks: int, micro_batch: int) -> None:
    machine = replace(HOST, ranks=ranks, memory_bytes=gib * GIB / ranks, host_bytes=gib * GIB)
    job = workload(GPT, machine, 2, micro_batch)
    rank = rank_memory(job)
    host = host_memory(job, rank.peak_bytes)

    assert rank.fits == host.fits
    assert ranks * rank.margin_bytes == pytest.approx(host.capacity_bytes - host.total_bytes, abs=ranks + 1)


def test_what_fits_one_machine_need_not_fit_a_smaller_one() -> None:
    job = workload(GPT, P4D, 1, 1)
    needed = host_memory(job, 0)
    smaller = replace(job, machine=replace(P4D, host_bytes=needed.total_bytes))

    assert needed.fits
    assert not host_memory(smaller, 0).fits
    assert needed.total_bytes == needed.states_bytes + needed.staged_bytes + needed.processes_bytes
