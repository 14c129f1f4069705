"""What a job takes of a GPU's memory, against torch's own tracker over the real code."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from convoy.model.counts import parameter_count
from convoy.planner.memory.accumulator import PARTS, MemoryAccumulator
from convoy.planner.memory.rank import Memory, least_nodes, memory_fit, rank_memory
from convoy.planner.memory.replay import replay_step
from convoy.planner.step.fsdp_units import stages
from convoy.planner.workload import Machine, Workload
from tests.campaign import examples, in_full
from tests.planner.grid import GPT, LLAMA, cases, workload
from tests.planner.test_plan import PRESETS, planned, preset
from tests.planner.tracked import tracked
from tests.planner.workloads import GIB, P4D, workload_of

pytestmark = [pytest.mark.campaign, pytest.mark.processes]


def chosen(whole: list[str], few: tuple[str, ...]) -> list[str]:
    """All in a campaign, where each takes up to some minutes; else a few."""
    assert set(few) <= set(whole)
    return whole if in_full() else list(few)


GRID = {case.name: case for case in cases()}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", chosen([path.stem for path in PRESETS], ("gpt-7b-p4d", "llama-13b-p4d")))
def test_a_preset_takes_what_the_tracker_weighs(name: str) -> None:
    """With two passes a step at most: more take no more."""
    job = workload_of(preset(name, "" if in_full() else "model.n_layers=4"))
    batch = job.data_ranks * job.train.micro_batch * min(2, job.passes)
    job = replace(job, train=job.train.model_copy(update={"global_batch": batch}))

    assert rank_memory(job).peak_bytes == pytest.approx(tracked(job)["Total"], rel=0.05)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", chosen(list(GRID), ("gpt, hsdp, 13", "gpt, linear, 14", "grouped, selective, 8")))
def test_what_fits_is_told_from_what_does_not(name: str) -> None:
    job = GRID[name].workload
    told, weighed = rank_memory(job), tracked(job)["Total"]

    assert told.peak_bytes == pytest.approx(weighed, rel=0.05)
    assert told.fits == (weighed <= told.capacity_bytes) or abs(weighed / told.capacity_bytes - 1) <= 0.05


def test_an_update_that_is_not_one_kernel_takes_more() -> None:
    job = workload({**GPT, "max_sequence_length": 128}, P4D, 1, 1, layers=4, strategy="ddp")

    assert rank_memory(job, fused=False).peak_bytes > rank_memory(job).peak_bytes


def test_the_grid_has_as_many_cases_that_fit_as_not() -> None:
    fit = [rank_memory(case.workload).fits for case in GRID.values()]

    assert len(fit) >= 40
    assert fit.count(True) >= 20 <= fit.count(False)


JOBS = st.builds(
    workload,
    st.sampled_from([GPT, LLAMA]),
    st.just(P4D),
    st.integers(1, 4),
    st.integers(1, 8),
    layers=st.integers(1, 12),
    passes=st.integers(1, 3),
    strategy=st.sampled_from(["fsdp", "hsdp", "ddp"]),
    wrap=st.sampled_from(["block", "linear"]),
    reshard_after_forward=st.booleans(),
    reduce_every_pass=st.booleans(),
    activation_checkpointing=st.sampled_from(["none", "full"]),
    reduce_dtype=st.sampled_from(["bf16", "fp32"]),
    loss_chunk_tokens=st.sampled_from([0, 512]),
)


@given(JOBS)
@examples(50)
def test_parts_add_up(job: Workload) -> None:
    told = rank_memory(job)

    assert sum(told.parts.values()) == told.peak_bytes == told.nominal_bytes - told.margin_bytes - told.fixed_bytes
    assert all(size >= 0 for size in told.parts.values())
    assert told.peak_bytes >= told.parts["parameters"] + told.parts["optimizer"] == 12 * stages(job)[0].shard_elements
    assert told.capacity_bytes - told.margin_bytes == told.peak_bytes


@given(JOBS, st.integers(1, 200), st.integers(1, 200))
@examples(50)
def test_more_memory_never_fits_less(job: Workload, one: int, other: int) -> None:
    less, more = (with_memory(job, gib * GIB) for gib in sorted((one, other)))

    assert less.share >= more.share
    assert more.fits or not less.fits
    assert more.reliable or not less.reliable


@given(JOBS)
@examples(50)
def test_more_layers_take_more(job: Workload) -> None:
    longer = replace(job, model=job.model.model_copy(update={"n_layers": job.model.n_layers + 1}))

    assert rank_memory(longer).peak_bytes > rank_memory(job).peak_bytes


@given(JOBS, st.booleans())
@example(workload(GPT, P4D, 1, 1, layers=4, strategy="hsdp", reduce_dtype="bf16"), True)
@examples(50)
def test_a_step_leaves_weights_moments_and_their_gradients_behind(job: Workload, fused: bool) -> None:
    (stage,) = stages(job)

    left = replay_step(job, stage, fused=fused).current_bytes

    assert left == {
        **dict.fromkeys(left, 0),
        "parameters": 4 * stage.shard_elements,
        "optimizer": 8 * stage.shard_elements,
        "gradients": 4 * stage.shard_elements,
    }


MOVES = st.lists(st.tuples(st.sampled_from(PARTS), st.integers(0, 9), st.integers(0, 9)), max_size=5)


@given(st.integers(0, 9), MOVES, MOVES, MOVES)
@examples(100)
def test_what_is_repeated_peaks_as_if_it_were_made_each_time(times: int, each: Any, first: Any, last: Any) -> None:
    def body(accumulator: MemoryAccumulator, place: int, count: int) -> None:
        more = (first if place == 0 else []) + (last if place == count - 1 else [])
        for part, taken, given_back in each + more:
            accumulator.allocate(part, taken)
            accumulator.free(part, given_back)

    one, other, places = MemoryAccumulator(), MemoryAccumulator(), iter(range(times))
    one.repeat(times, lambda: body(one, next(places), min(times, 4)))
    for place in range(times):
        body(other, place, times)

    assert (one.current_bytes, one.most) == (other.current_bytes, other.most)


def test_a_pipelines_fullest_stage_counts() -> None:
    """The first one holds the most micro batches, the last one has the head."""
    job = workload(LLAMA, P4D, 1, 1, layers=8, passes=8, pipeline=4)
    each = [replay_step(job, stage, in_flight=held).most for stage, held in zip(stages(job), (4, 3, 2, 1), strict=True)]

    assert rank_memory(job).peak_bytes == max(each)
    assert each[1] > each[2]


@given(st.integers(1, 8), st.sampled_from(["block", "linear"]), st.sampled_from(["bf16", "fp32"]), st.booleans())
@examples(20)
def test_a_stage_leaves_its_buffers_behind_as_well(passes: int, wrap: str, reduce_dtype: str, reshard: bool) -> None:
    keys = {"wrap": wrap, "reduce_dtype": reduce_dtype, "reshard_after_forward": reshard}
    job = workload(LLAMA, P4D, 1, 1, layers=8, passes=passes, pipeline=4, **keys)
    hidden = 2 * job.tokens_per_pass * job.model.d_model

    for stage, held in zip(stages(job), (4, 3, 2, 1), strict=True):
        in_flight = min(held, passes)
        left = replay_step(job, stage, in_flight=in_flight).current_bytes
        inputs, gradients = (0 if stage.first else passes - in_flight), (0 if stage.last else passes)
        assert left == {
            **dict.fromkeys(left, 0),
            "parameters": 4 * stage.shard_elements,
            "optimizer": 8 * stage.shard_elements,
            "gradients": 4 * stage.shard_elements,
            "activations": (inputs + gradients) * hidden,
        }


def test_offloaded_states_are_not_on_the_gpu() -> None:
    here, there = (workload(GPT, P4D, 2, 1, cpu_offload=offload) for offload in (False, True))

    assert rank_memory(there).parts["parameters"] == rank_memory(there).parts["optimizer"] == 0
    assert rank_memory(there).peak_bytes < rank_memory(here).peak_bytes


@pytest.mark.parametrize(
    ("model", "keys"),
    [
        (GPT, {}),
        (GPT, {"reshard_after_forward": False, "passes": 2}),
        (LLAMA, {"reshard_after_forward": False, "reduce_dtype": "bf16"}),
        (GPT, {"reshard_after_forward": False, "param_dtype": "fp32", "passes": 3, "reduce_every_pass": False}),
    ],
)
def test_ranks_on_a_host_take_its_memory_and_hold_what_others_send(model: dict[str, Any], keys: dict[str, Any]) -> None:
    host = Machine("cpu", 2, 40 * GIB, 80 * GIB, 0, 1e9)
    job = workload({**model, "d_model": 4096, "vocab_size": 64, "n_heads": 8}, host, 1, 1, **keys)
    told = rank_memory(job)

    assert told.peak_bytes == pytest.approx(tracked(job)["Total"], rel=0.05)
    assert told.peak_bytes > rank_memory(replace(job, machine=replace(host, gpu="A100"))).peak_bytes
    assert told.capacity_bytes == pytest.approx(
        (0.85 * 80 * GIB - GIB - 2.2 * 12 * parameter_count(job.model)) / 2, rel=1e-6
    )


SMALL: dict[str, Any] = {"d_model": 512, "n_heads": 4, "vocab_size": 4000}
SHORT = {**SMALL, "max_sequence_length": 128}
HOST = Machine("cpu", 3, 40 * GIB, 80 * GIB, 0, 1e9)


@pytest.mark.parametrize(
    ("model", "machine", "keys"),
    [
        ({**GPT, **SMALL}, P4D, {"layers": 6}),
        ({**GPT, **SMALL}, P4D, {"layers": 6, "activation_checkpointing": "selective"}),
        ({**GPT, **SMALL}, P4D, {"param_dtype": "fp32"}),
        ({**LLAMA, **SMALL, "d_ff": 1408}, P4D, {"activation_checkpointing": "full"}),
        ({**LLAMA, **SHORT, "d_ff": 4096}, P4D, {"passes": 3, "reduce_dtype": "bf16"}),
        ({**GPT, **SHORT, "vocab_size": 50304}, P4D, {}),  # the peak is the end of backward
        ({**GPT, **SHORT, "d_model": 2048}, HOST, {"layers": 2}),
        ({**LLAMA, **SHORT, "d_ff": 4096}, HOST, {"reduce_dtype": "bf16", "param_dtype": "fp32", "passes": 2}),
    ],
)
def test_ddp_takes_what_the_tracker_weighs(model: dict[str, Any], machine: Machine, keys: dict[str, Any]) -> None:
    job = workload(model, machine, 1, 2, strategy="ddp", **keys)

    assert rank_memory(job).peak_bytes == pytest.approx(tracked(job)["Total"], rel=0.01)


def test_ddps_buckets_and_what_earlier_passes_left_are_there_at_once() -> None:
    job = workload({**GPT, **SHORT}, P4D, 1, 1, strategy="ddp", passes=2, layers=12)
    one = replace(job, train=job.train.model_copy(update={"micro_batch": 2}))

    assert (one.passes, job.passes) == (1, 2)
    assert rank_memory(job).parts["gradients"] - rank_memory(one).parts["gradients"] == pytest.approx(
        4 * parameter_count(job.model), rel=0.05
    )


def test_a_host_that_staged_copies_fill_has_no_room_and_a_share_that_can_be_told() -> None:
    told = rank_memory(workload(GPT, Machine("cpu", 2, GIB, 2 * GIB, 0, 1e9), 1, 1))

    assert (told.capacity_bytes, told.fits) == (0, False)
    assert 1 < told.share < 100
    assert told.margin_bytes == told.nominal_bytes - told.fixed_bytes - told.peak_bytes


def with_memory(job: Workload, size: int) -> Memory:
    return rank_memory(replace(job, machine=replace(job.machine, memory_bytes=size)))


def one_by_one(job: Workload, most: int) -> int | None:
    return next(
        (n for n in range(job.nodes + 1, most) if memory_fit(replace(job, nodes=n), fused=True).reliable),
        None,
    )


@pytest.mark.parametrize("gib", [3, 4, 6, 8, 12])
@pytest.mark.parametrize("micro_batch", [1, 5, 7])
def test_it_is_what_looking_at_each_number_finds(gib: int, micro_batch: int) -> None:
    """Passes are evened out, so that memory goes up and down with the number of machines."""
    job = workload(GPT, replace(P4D, memory_bytes=gib * GIB), 1, micro_batch)
    job = replace(job, train=job.train.model_copy(update={"global_batch": 300}))

    assert least_nodes(job, fused=True) == one_by_one(job, 300 // 8 + 1)


def test_the_host_counts_too() -> None:
    job = workload(GPT, P4D, 1, 1)
    job = replace(job, train=job.train.model_copy(update={"global_batch": 256}))
    host = memory_fit(job, fused=True).host
    assert host is not None
    small = replace(job, machine=replace(P4D, host_bytes=(host.processes_bytes + 0.2 * host.staged_bytes) / 0.85))

    assert memory_fit(small, fused=True).memory.reliable
    assert not memory_fit(small, fused=True).reliable
    assert least_nodes(small, fused=True) in (5, 6)


def test_a_plan_without_room_says_on_how_many_machines_there_is() -> None:
    plan = planned("gpt-175b-p4d", "cluster.nodes=2")
    assert plan.least_nodes is not None
    assert planned("gpt-175b-p4d", f"cluster.nodes={plan.least_nodes}").fits_reliably
    assert not planned("gpt-175b-p4d", f"cluster.nodes={plan.least_nodes - 1}").fits_reliably
    change = plan.changes[-1]
    assert change.keys == {"cluster.nodes": plan.least_nodes}
    assert "of its own memory than a machine has" in plan.limits[0].text


def test_where_more_machines_do_not_help_none_are_named() -> None:
    assert planned("gpt-7b-p4d", "train.micro_batch=8").memory is not None
    assert planned("gpt-7b-p4d", "parallel.strategy=ddp parallel.shard_size=null").least_nodes is None
    assert planned("gpt-7b-p4d").least_nodes is None
