"""Other libraries train our model as we do, and leave the process to the others as it was."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from accelerate import PartialState
from torch.profiler import ProfilerActivity, profile

from convoy.benchmark.groups import Group, PeerKind, Ranks, VariantSpec
from convoy.benchmark.measure.memory_footprint import Footprint, measure_footprint, peak_allocated_bytes
from convoy.benchmark.memory_estimate import estimate_memory
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.figures import losses_agree, speedup
from convoy.benchmark.results.values import MEMORY_PARTS, STATE_BYTES
from convoy.benchmark.suites.peers import PEERS, engines_of, variants_of
from convoy.benchmark.variants.build import build_engine
from convoy.benchmark.variants.convoy import ConvoyVariant
from convoy.benchmark.variants.peer import PeerVariant
from convoy.benchmark.worker import check_same_cases
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.launch.benchmark.groups import run_groups
from convoy.training.batches import RankData
from convoy.training.process_groups import connect_ranks
from tests.benchmark.benches import a_group, cases_of_gang, one_of_two
from tests.benchmark.cases import replaced
from tests.ranks import in_a_group
from tests.training.job import GPT, LLAMA, Job, tiny

LIBRARIES = ("torch", "accelerate", "deepspeed")
STEPS = 3


class Trained(NamedTuple):
    """What a variant has shown on a rank."""

    losses: list[float]
    held: int
    """Bytes of weights and optimizer state."""
    taken: Footprint
    built: int
    """Bytes of tensors at most, while it was built."""


def steps(rank: int, assignments: list[Any], kinds: Sequence[PeerKind]) -> dict[str, Trained]:
    """Of each variant; they take turns."""
    warnings.simplefilter("ignore")
    assignment = assignments[rank]
    ranks, config = connect_ranks(assignment), assignment.config
    world = ranks.place.world_size
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(world))
    before = F.linear, torch.get_num_threads(), dict(os.environ)

    def data() -> RankData:
        return RankData(config, assignment.root, assignment.data_id, assignment.fingerprint, ranks)

    variants: list[ConvoyVariant | PeerVariant] = [ConvoyVariant("ours", config, ranks, data())]
    built = {"ours": 0}
    for kind in kinds:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            made = build_engine(kind, config, ranks)
        built[kind] = peak_allocated_bytes(profiler)
        variants.append(PeerVariant(kind, config, ranks, data(), made))
    for spec in engines_of(LIBRARIES):
        variants.append(ConvoyVariant(spec.name, spec.config(config), ranks, data()))
        built[spec.name] = 0
    for _ in range(STEPS):
        for variant in variants:
            variant.step()
            assert before[0] is F.linear
            assert not PartialState._shared_state, "a loss of transformers would become a sum over all ranks"
    assert before == (F.linear, torch.get_num_threads(), dict(os.environ))
    losses = {variant.name: variant.losses[:] for variant in variants}
    found = {}
    for variant in variants:
        taken = measure_footprint(variant, ranks)
        found[variant.name] = Trained(losses[variant.name], variant.held_bytes, taken, built[variant.name])
    assert before == (F.linear, torch.get_num_threads(), dict(os.environ))
    for variant in variants:
        variant.close()
    return found


@pytest.mark.parametrize(
    ("shape", "dtype", "micro_batch"),
    [
        pytest.param(GPT, "fp32", 8, id="fp32"),
        pytest.param(LLAMA, "bf16", 2, id="bf16 in two passes", marks=pytest.mark.slow),
    ],
)
def test_every_library_learns_as_we_do(shape: dict[str, Any], dtype: str, micro_batch: int, tmp_path: Path) -> None:
    train = {"param_dtype": dtype, "micro_batch": micro_batch, "clip_norm": 0.1}
    job = Job(str(tmp_path), tiny(model=shape, train=train, optimizer={"fused": True}))
    first, second = job.on_gang(2, steps, list(PEERS))
    ours, held, memory, _ = first.pop("ours")
    assert set(first) == {*PEERS, *(spec.name for spec in engines_of(LIBRARIES))}
    for name, found in first.items():
        assert found.losses == pytest.approx(ours, rel=1e-2 if dtype == "bf16" else 1e-5), name
        assert found.losses == second[name].losses, name
        alone = first[name.removesuffix(" as engine")]
        assert found.losses == pytest.approx(alone.losses, rel=1e-6), name
        assert found.held == alone.held, name
    # DDP holds all of it on every rank, accelerate shards what we do, and ZeRO at least the optimizer's state.
    assert first["torch DDP"].held == pytest.approx(2 * held, rel=0.02)
    assert first["accelerate FSDP2"].held == held
    assert all(held < first[f"DeepSpeed ZeRO-{stage}"].held < 2 * held for stage in (1, 2, 3))
    _as_reckoned(job.config, first)
    sharded, zero_3 = first["accelerate FSDP2"].taken, first["DeepSpeed ZeRO-3"].taken
    # Of the rank that took most, which with parts of unequal size may be either.
    assert sharded.parameters == pytest.approx(memory.parameters, rel=0.01)
    assert (sharded.optimizer, sharded.gradients) == (pytest.approx(memory.optimizer, rel=0.01), 0)
    assert first["torch DDP"].taken.gradients == first["torch DDP"].taken.parameters
    assert zero_3.gradients > zero_3.parameters + 10**9, "a bucket of 5e8 elements"


def _as_reckoned(config: RunConfig, found: dict[str, Trained]) -> None:
    """What was told to be taken at least, is."""
    for kind in PEERS:
        reckoned = estimate_memory(VariantSpec(name=kind, kind=kind), config, Ranks(2, 2))
        assert found[kind].taken.peak_bytes >= reckoned.device.states, kind
        assert found[kind].built >= reckoned.device.built, kind
        if kind == "accelerate FSDP2":
            assert found[kind].built == pytest.approx(reckoned.device.built, rel=0.01)
        if kind in ("DeepSpeed ZeRO-1", "DeepSpeed ZeRO-2"):
            gradients = found[kind].taken.parameters if kind == "DeepSpeed ZeRO-1" else found[kind].taken.parameters / 2
            held = found[kind].taken.parameters + found[kind].taken.optimizer + gradients
            assert held == pytest.approx(reckoned.device.states, rel=0.01), kind


@pytest.mark.slow
def test_a_gang_measures_them_beside_our_own(tmp_path: Path) -> None:
    ours = (VariantSpec(name=name, changes={"parallel": {"strategy": name}}) for name in ("ddp", "fsdp"))
    chosen = (spec for spec in variants_of(LIBRARIES) if spec.name in ("accelerate FSDP2", "DeepSpeed ZeRO-3"))
    group = a_group(str(tmp_path / "root"), *ours, *chosen, nodes=2, suite="strategies")
    cases = cases_of_gang(group, nodes=2)
    assert {name: case.baseline for name, case in cases.items()} == {
        "ddp": None, "fsdp": "ddp", "accelerate FSDP2": "fsdp", "DeepSpeed ZeRO-3": "fsdp",
    }  # fmt: skip
    for case in cases.values():
        assert losses_agree(case, cases["ddp"], 1e-4)
        assert case.values[STATE_BYTES] >= 12 * case.parameters / 2
        assert case.memory_peak_bytes == sum(case.values[name] for name in MEMORY_PARTS.values())
    assert speedup(cases["DeepSpeed ZeRO-3"], cases["fsdp"]).n == 6
    assert "accelerate" in cases["accelerate FSDP2"].provenance.versions
    assert "deepspeed" in cases["DeepSpeed ZeRO-3"].provenance.versions


def test_a_library_that_is_not_here_is_refused_before_the_gang_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "convoy.benchmark.suites.peers.find_spec", lambda name: None if name == "deepspeed" else object()
    )
    group = a_group(str(tmp_path), VariantSpec(name="ours"), *variants_of(LIBRARIES), suite="strategies")
    gangs, lines = [], []
    (ran,) = run_groups([group], lambda gang, _: gangs.append(gang), lines.append)
    assert [spec.name for spec in gangs[0].variants] == ["ours", "torch DDP", "accelerate FSDP2"]
    cases: dict[str, Case] = {case.name: case for case in ran.cases}
    assert set(cases) == {f"DeepSpeed ZeRO-{stage}" for stage in (1, 2, 3)}
    for case in cases.values():
        assert case.status == "refused"
        assert case.reason == "deepspeed is not installed: pip install 'metaflow-convoy[peers]'"
    assert "DeepSpeed ZeRO-1: deepspeed is not installed: pip install 'metaflow-convoy[peers]'" in lines
    assert ran.failure == ""


def told_apart(rank: int, group: Group) -> str:
    """What a rank says whose node has no DeepSpeed, and what the others say."""
    ranks = one_of_two(rank)
    check_same_cases(group, ranks)
    own = group if rank == 0 else replaced(group, variants=group.variants[:-3])
    try:
        check_same_cases(own, ranks)
    except ConfigError as error:
        return str(error)
    return ""


def test_nodes_with_other_packages_do_not_wait_for_each_other(tmp_path: Path) -> None:
    group = a_group(str(tmp_path), VariantSpec(name="ours"), *variants_of(LIBRARIES), suite="strategies")
    first, second = in_a_group(2, told_apart, group)
    names = ", ".join(f"DeepSpeed ZeRO-{stage}" for stage in (1, 2, 3))
    assert first == second == f"strategies-tiny: not all nodes have the packages of {names} (ranks 0 and 1 differ)"


def test_only_libraries_that_are_asked_for_have_cases() -> None:
    assert [spec.name for spec in variants_of(("accelerate",))] == ["accelerate FSDP2"]
    assert [spec.name for spec in engines_of(("torch", "accelerate"))] == ["accelerate FSDP2 as engine"]
    assert list(variants_of(())) == list(engines_of(())) == []
