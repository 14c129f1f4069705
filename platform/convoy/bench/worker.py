"""A rank of a benchmark's gang: `python -m convoy.bench.worker GROUP.json FOLDER`, started as torchrun starts a script.

All variants of the group are built side by side; rank 0 writes a file for each into the folder.
"""

import os
import subprocess
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.distributed as dist

from convoy import script
from convoy.bench.baseline import Baseline
from convoy.bench.groups import Group, VariantSpec
from convoy.bench.ours import Ours
from convoy.bench.rounds import Measured, Plan, measure
from convoy.config.run import RunConfig
from convoy.data.manifest import fingerprint
from convoy.data.prepare import prepare
from convoy.gang.assignment import Place
from convoy.parallel.mesh import build_mesh
from convoy.results.case import Case, Hardware, Provenance
from convoy.results.files import write_case
from convoy.storage import open_store
from convoy.training.batches import Data
from convoy.training.measure import environment, measure_matmul
from convoy.training.model import model_built
from convoy.training.ranks import SAVE_TIMEOUT, TIMEOUT, Ranks, choose_device

ENVIRONMENT = (
    "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF", "NCCL_ALGO", "NCCL_PROTO", "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE", "NCCL_NET", "NCCL_SOCKET_IFNAME", "FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA", "GLOO_SOCKET_IFNAME",
)  # fmt: skip
"""Variables that are known to change speed. Nothing else of the environment is kept: it may hold secrets."""


def main(group: Group, folder: Path) -> None:
    """Measure the group, and write what was measured."""
    ranks = ranks_of_environment(group.run)
    data = _data(group.run, ranks)
    with ExitStack() as stack:
        variants: dict[str, Ours | Baseline] = {}
        for spec in group.variants:
            config = spec.config(group.run)
            own = replace(ranks, mesh=build_mesh(config.parallel, ranks.device.type, ranks.place.world_size, 1))
            kind: type[Ours | Baseline] = Ours if spec.kind == "ours" else Baseline
            variant = kind(spec.name, config, own, data)
            variants[spec.name] = stack.enter_context(closing(variant))
        began, steps = datetime.now(UTC), iter(range(1, 10**9))
        plan = Plan(
            rounds=group.measure.rounds,
            block_steps=group.measure.block_steps,
            block_seconds=group.measure.block_seconds,
            warm_up_most=group.measure.warm_up_most,
        )
        found = measure(
            list(variants.values()), plan, ranks.device, ranks.control, lambda: script.progress(next(steps))
        )
        rate = measure_matmul(ranks, group.run.train.param_dtype, 0.5)
        if ranks.first:
            for spec in group.variants:
                write_case(folder, _case(group, spec, variants[spec.name], found[spec.name], ranks, began, rate))
    dist.destroy_process_group()


def ranks_of_environment(config: RunConfig) -> Ranks:
    """Meet the others, as the environment tells: a script's, under a gang or torchrun."""
    place = _place(config)
    torch.set_num_threads(place.threads)
    device = choose_device(place, torch.cuda.device_count())
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


def _data(config: RunConfig, ranks: Ranks) -> Data:
    """Prepared by rank 0, for all of them."""
    box: list[tuple[str, str]] = []
    if ranks.first:
        manifest = prepare(config.data, open_store(str(config.root)))
        box = [(manifest.id, fingerprint(manifest, config.data))]
    told = box or [("", "")]
    dist.broadcast_object_list(told, group=ranks.control, group_src=0)
    return Data(config, str(config.root), *told[0], ranks)


def _case(
    group: Group,
    spec: VariantSpec,
    variant: Ours | Baseline,
    found: Measured,
    ranks: Ranks,
    began: datetime,
    matmul_tflops: float,
) -> Case:
    config = spec.config(group.run)
    told = environment(ranks, config.train.param_dtype, matmul_tflops)
    flops = model_built(config, torch.nn.Module()).flops_per_token
    return Case(
        suite=group.suite,
        group=group.name,
        name=spec.name,
        baseline=None if spec.name == group.baseline else group.baseline,
        model=config.model.name,
        parameters=variant.parameters,
        tokens_per_step=config.train.global_batch * config.data.sequence_length,
        flops_per_token=flops,
        config=config.model_dump(mode="json"),
        hardware=Hardware(
            device=told.device,
            nodes=ranks.place.nodes,
            ranks=ranks.place.world_size,
            threads=told.threads,
            cores=len(os.sched_getaffinity(0)),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            instance_type=config.cluster.instance_type,
            peak_tflops=told.peak_tflops,
            matmul_tflops=told.matmul_tflops,
        ),
        provenance=Provenance(
            measured=began,
            commit=_commit(),
            versions=told.versions,
            environment={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            command=" ".join(sys.argv),
        ),
        warm_up_steps=found.warm_up_steps,
        steady=found.steady,
        blocks=tuple(found.blocks),
        losses=tuple(variant.losses[:10]),
    )


def _commit() -> str:
    """Of the sources that run; empty where they are in no checkout."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return ""
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    return commit + ("+changes" if commit and git("status", "--porcelain") else "")


if __name__ == "__main__":
    main(Group.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
