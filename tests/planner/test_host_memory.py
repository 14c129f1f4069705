"""What a job takes of each machine's own memory."""

from dataclasses import replace

from convoy.model.counts import parameter_count
from convoy.planner.host_memory import host_memory
from tests.planner.grid import GIB, GPT, P4D, workload

HOST = replace(P4D, gpu="cpu", ranks=2, host_bytes=64 * GIB)


def test_machines_together_stage_two_copies_of_the_state() -> None:
    for nodes in (1, 3, 16):
        job = workload(GPT, P4D, nodes, 1)

        assert host_memory(job).staged * nodes >= 2 * 12 * parameter_count(job.model)


def test_states_are_in_host_memory_where_they_are_offloaded_or_there_is_no_gpu() -> None:
    whole = 16 * parameter_count(workload(GPT, P4D, 1, 1).model)

    assert host_memory(workload(GPT, P4D, 2, 1)).states == 0
    assert host_memory(workload(GPT, P4D, 2, 1, cpu_offload=True)).states == whole // 2
    assert host_memory(workload(GPT, HOST, 1, 1)).states == whole
    assert host_memory(workload(GPT, HOST, 1, 1, strategy="ddp")).states == 2 * whole


def test_what_fits_one_machine_need_not_fit_a_smaller_one() -> None:
    job = workload(GPT, P4D, 1, 1)
    told = host_memory(job)
    smaller = replace(job, machine=replace(P4D, host_bytes=told.total))

    assert told.fits
    assert not host_memory(smaller).fits
    assert told.total == told.states + told.staged + told.processes
