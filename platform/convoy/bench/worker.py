"""A rank of a benchmark's gang: `python -m convoy.bench.worker GROUP.json FOLDER`, started as torchrun starts a script.

All variants of the group are built side by side; rank 0 writes a file for each into the folder.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist

import convoy
from convoy import script
from convoy.bench import collectives, environments, peers, scaling
from convoy.bench.baseline import Baseline
from convoy.bench.footprint import footprint
from convoy.bench.groups import Group, VariantSpec
from convoy.bench.needs import lacking
from convoy.bench.observe import observed, observer_of
from convoy.bench.ours import Ours
from convoy.bench.peer import Peer
from convoy.bench.pinning import keep_to
from convoy.bench.rounds import Measured, Plan, host_sent_bytes, measure
from convoy.bench.saving import Saving, before_block, measured_at_rest
from convoy.bench.waiting import Waiting
from convoy.bench.worlds import world_of
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig
from convoy.data.manifest import fingerprint
from convoy.data.prepare import prepare
from convoy.gang.assignment import Place
from convoy.parallel.mesh import build_mesh
from convoy.results.case import Block, Case, Hardware, Provenance
from convoy.results.files import write_case
from convoy.results.values import STATE_BYTES
from convoy.storage import open_store
from convoy.training.batches import Data
from convoy.training.measure import environment, measure_matmul
from convoy.training.model import model_built
from convoy.training.ranks import SAVE_TIMEOUT, TIMEOUT, Ranks, choose_device

MATMUL_SECONDS = 0.5
"""For each type that a case computes in."""

OF_MEMORY = ("memory", "strategies")
"""Suites that weigh their cases on a CPU too, where a profiled step of each takes seconds."""

Prepared = tuple[str, dict[str, str]]
"""The data's id, and its fingerprint for each variant by name: one may cut it into other sequences."""

ENVIRONMENT = (
    "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF", "NCCL_ALGO", "NCCL_PROTO", "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE", "NCCL_NET", "NCCL_SOCKET_IFNAME", "FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA", "GLOO_SOCKET_IFNAME",
)  # fmt: skip
"""Variables that are known to change speed. Nothing else of the environment is kept, but for what an environment of the
configuration sets: it may hold secrets."""


def main(group: Group, folder: Path) -> None:
    """Measure the group, and write what was measured."""
    environments.enter(group.environment)
    cores = sorted(os.sched_getaffinity(0))
    place = _place(group.run)
    own = share(cores, place.host_rank, place.host_ranks)
    if group.measure.pin:  # before anything makes threads, which keep to it too
        os.sched_setaffinity(0, own)
    ranks = ranks_of_environment(group.run, place)
    group, left_out = measurable(group, ranks.device)
    check_same_cases(group, ranks)
    prepared = _prepared(group, ranks)
    with ExitStack() as stack:
        variants = [stack.enter_context(closing(_variant(spec, group, ranks, prepared))) for spec in group.variants]
        observer = observer_of(group, cores, own, ranks)
        began, steps = datetime.now(UTC), iter(range(1, 10**9))

        def passed() -> None:
            script.progress(next(steps))

        plan = Plan(
            rounds=group.measure.rounds,
            block_steps=group.measure.block_steps,
            block_seconds=group.measure.block_seconds,
            warm_up_most=group.measure.warm_up_most,
        )
        found = measure(
            variants,
            plan,
            ranks.device,
            ranks.control,
            passed,
            _sent_bytes(ranks),
            lambda line: print(line, flush=True) if ranks.first else None,
            observer,
            before_block(variants),
        )
        told = {} if observer is None else observed(observer, variants, found, ranks, len(cores))
        if observer is not None:
            keep_to(own if group.measure.pin else cores)
        saves = measured_at_rest(variants, group.predict, passed)
        types = {spec.name: spec.config(group.run).train.param_dtype for spec in group.variants}
        of_memory = ranks.device.type == "cuda" or group.suite in OF_MEMORY
        weighed = variants if of_memory else []
        footprints = {each.name: footprint(each, ranks.device, ranks.control, passed) for each in weighed}
        rates = {dtype: measure_matmul(ranks, dtype, MATMUL_SECONDS) for dtype in sorted(set(types.values()))}
        beside = collectives.of_cases(group, ranks)
        if ranks.first:
            for spec, variant in zip(group.variants, variants, strict=True):
                case = _case(group, spec, variant, found[spec.name], ranks, len(cores), began, rates[types[spec.name]])
                values = further_values({name: each.blocks for name, each in found.items()}, spec, group, ranks)
                seen, missing = told.get(spec.name, ({}, {}))
                taken, saved = footprints.get(spec.name), saves.get(spec.name)
                further = values | _state(group, variant) | seen | beside.get(spec.name, {})
                found_out = {
                    "values": further | (taken.values() if taken else {}) | (saved.values if saved else {}),
                    "samples": saved.samples if saved else {},
                    "memory_peak_bytes": taken.peak if taken else None,
                    "not_measured": spec.not_measured | missing | (left_out if case.baseline is None else {}),
                }
                write_case(folder, case.model_copy(update=found_out))
    dist.destroy_process_group()


def measurable(group: Group, device: torch.device) -> tuple[Group, dict[str, str]]:
    """The group without the variants that cannot be measured on such a device, and by their names why not."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    reasons = {spec.name: lacking(spec.needs, capability) for spec in group.variants}
    kept = tuple(spec for spec in group.variants if not reasons[spec.name])
    return group.model_copy(update={"variants": kept}), {name: why for name, why in reasons.items() if why}


def check_same_cases(group: Group, ranks: Ranks) -> None:
    """Raise ConfigError if nodes have other packages, and so other cases, than the first one has: ranks that measure
    different things would wait for each other."""
    own = [spec.name for spec in group.variants]
    told: list[list[str]] = [[] for _ in range(ranks.place.world_size)]
    dist.all_gather_object(told, own, group=ranks.control)
    for rank, names in enumerate(told):
        if names != told[0]:
            apart = ", ".join(sorted({*names} ^ {*told[0]}))
            raise ConfigError(f"{group.name}: not all nodes have the packages of {apart} (ranks 0 and {rank} differ)")


def _variant(spec: VariantSpec, group: Group, ranks: Ranks, prepared: Prepared) -> Ours | Baseline | Peer | Waiting:
    config = spec.config(group.run)
    world = world_of(ranks, spec.ranks or ranks.place.world_size, config.parallel)
    if ranks.place.rank >= world.place.world_size and not spec.at_once:
        return Waiting(spec.name)
    data_id, fingerprints = prepared
    data = Data(config, str(config.root), data_id, fingerprints[spec.name], world)
    match spec.kind:
        case "ours":
            return Ours(spec.name, config, world, data)
        case "saving":
            return Saving(spec.name, config, world, data)
        case "baseline":
            return Baseline(spec.name, config, world, data)
        case kind:
            return Peer(spec.name, config, world, data, peers.engine(kind, config, world))


def further_values(
    blocks: Mapping[str, Sequence[Block]], spec: VariantSpec, group: Group, ranks: Ranks
) -> dict[str, float]:
    """What the suite tells of a case beside its blocks."""
    if group.suite == "scaling":
        return scaling.further_values(blocks, spec, group.variants, ranks.place.world_size)
    return dict(spec.values)


def _state(group: Group, variant: Ours | Baseline | Peer | Waiting) -> dict[str, float]:
    """What rank 0 holds, where that is what cases differ in."""
    return {STATE_BYTES: float(variant.held_bytes)} if group.suite == "strategies" else {}


def _sent_bytes(ranks: Ranks) -> Callable[[], float] | None:
    """One rank of each host tells for all of it. GPUs talk past the kernel, which then cannot tell."""
    if ranks.device.type == "cuda":
        return None
    return host_sent_bytes if ranks.place.host_rank == 0 else lambda: 0.0


def ranks_of_environment(config: RunConfig, place: Place) -> Ranks:
    """Meet the others, as the environment tells: a script's, under a gang or torchrun."""
    torch.set_num_threads(place.threads)
    # Each node's ranks see its own GPUs only, also where nodes share a host.
    own = place.model_copy(update={"host_rank": place.local_rank, "host_ranks": place.nproc_per_node})
    device = choose_device(own, torch.cuda.device_count())
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        timeout=TIMEOUT,
        device_id=device if device.type == "cuda" else None,
    )
    mesh = build_mesh(config.parallel, device.type, place.world_size, place.nproc_per_node)
    control = dist.new_group(backend="gloo", timeout=TIMEOUT)
    return Ranks(place, device, mesh, control, dist.new_group(backend="gloo", timeout=SAVE_TIMEOUT))


def _place(config: RunConfig) -> Place:
    told = {name: int(os.environ[name]) for name in _VARIABLES}
    local = config.cluster.backend == "local"
    on_host = told["WORLD_SIZE"] if local else told["LOCAL_WORLD_SIZE"]
    cores = len(os.sched_getaffinity(0))
    return Place(
        rank=told["RANK"],
        local_rank=told["LOCAL_RANK"],
        node=told["GROUP_RANK"],
        nodes=told["WORLD_SIZE"] // told["LOCAL_WORLD_SIZE"],
        nproc_per_node=told["LOCAL_WORLD_SIZE"],
        host_rank=told["RANK"] if local else told["LOCAL_RANK"],
        host_ranks=on_host,
        threads=config.train.threads_per_rank or max(1, cores // on_host),
    )


_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")


def share(cores: Sequence[int], rank: int, ranks: int) -> Sequence[int]:
    """The cores of one of a host's ranks: neighbours, as many for each, at least one."""
    each = max(1, len(cores) // ranks)
    first = rank * each % len(cores)
    return cores[first : first + each]


def _prepared(group: Group, ranks: Ranks) -> Prepared:
    """By rank 0, for all of them."""
    told: list[Prepared] = [("", {})]
    if ranks.first:
        manifest = prepare(group.run.data, open_store(str(group.run.root)))
        found = {spec.name: fingerprint(manifest, spec.config(group.run).data) for spec in group.variants}
        told = [(manifest.id, found)]
    dist.broadcast_object_list(told, group=ranks.control, group_src=0)
    return told[0]


def _case(
    group: Group,
    spec: VariantSpec,
    variant: Ours | Baseline | Peer | Waiting,
    found: Measured,
    ranks: Ranks,
    cores: int,
    began: datetime,
    matmul_tflops: float,
) -> Case:
    config = spec.config(group.run)
    told = environment(ranks, config.train.param_dtype, matmul_tflops)
    flops = model_built(config, torch.nn.Module()).flops_per_token
    together = spec.ranks or ranks.place.world_size
    jobs = ranks.place.world_size // together if spec.at_once else 1
    return Case(
        suite=group.suite,
        group=group.name,
        name=spec.name,
        baseline=group.baseline_of(spec),
        model=config.model.name,
        parameters=variant.parameters,
        tokens_per_step=variant.tokens_per_step * jobs,
        flops_per_token=flops,
        config={key: value for key, value in config.model_dump(mode="json").items() if key != "root"},
        hardware=Hardware(
            device=told.device,
            nodes=1 if config.cluster.backend == "local" else ranks.place.nodes,
            ranks=together * jobs,
            jobs=jobs,
            threads=told.threads,
            cores=cores,
            pinned=spec.pinned(group.measure),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            instance_type=config.cluster.instance_type,
            peak_tflops=told.peak_tflops,
            matmul_tflops=told.matmul_tflops,
        ),
        provenance=Provenance(
            measured=began,
            commit=commit_of_sources(),
            versions=told.versions | {name: version(name) for name in peers.packages(spec)},
            environment=environments.captured(ENVIRONMENT, group.environment),
            command=group.command,
        ),
        warm_up_steps=found.warm_up_steps,
        steady=found.steady,
        blocks=tuple(found.blocks),
        losses=tuple(variant.losses[:10]),
    )


def commit_of_sources() -> str:
    """Of the sources that run, `+changes` where the package has any; empty where they are in no checkout."""
    here = Path(convoy.__file__).parent

    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return ""
        return done.stdout.strip()

    if not git("ls-files", "__init__.py"):
        return ""
    return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", ".") else "")


if __name__ == "__main__":
    main(Group.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
