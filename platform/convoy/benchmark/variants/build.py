"""The variants of a gang, built next to each other."""

from collections.abc import Callable
from functools import partial

import torch.distributed as dist

from convoy.benchmark.groups import Group, Kind, PeerKind, VariantSpec
from convoy.benchmark.suites import peers
from convoy.benchmark.variants.baseline import BaselineVariant
from convoy.benchmark.variants.convoy import ConvoyVariant
from convoy.benchmark.variants.convoy_saving import SavingVariant, new_place
from convoy.benchmark.variants.framework import FrameworkTraining, FrameworkVariant
from convoy.benchmark.variants.peer import PeerTraining, PeerVariant, TorchDdp
from convoy.benchmark.variants.ranks import join_world
from convoy.benchmark.variants.variant import Variant
from convoy.config.run import RunConfig
from convoy.data.job_data import prepare_job_data
from convoy.storage import open_store
from convoy.training.data import open_data
from convoy.training.process_groups import Ranks

PreparedData = tuple[str, dict[str, str]]
"""The data's id, and its fingerprint for each variant by name: a variant may cut it into other sequences."""


def prepare_group_data(group: Group, ranks: Ranks) -> PreparedData:
    """Prepared by rank 0 for all ranks, which call it alike."""
    prepared: list[PreparedData] = [("", {})]
    if ranks.first:
        store = open_store(str(group.run.root))
        data = {spec.name: prepare_job_data(spec.config(group.run), store) for spec in group.variants}
        prepared = [(next(iter(data.values())).id, {name: each.fingerprint for name, each in data.items()})]
    dist.broadcast_object_list(prepared, group=ranks.control, group_src=0)
    return prepared[0]


def build_variant(spec: VariantSpec, group: Group, ranks: Ranks, prepared: PreparedData) -> Variant:
    """A variant on the ranks that it trains on, ready for its first step; on the others one that waits. All ranks call
    it."""
    config = spec.config(group.run)
    training = connect_framework(spec.kind, ranks)
    world = join_world(ranks, spec.ranks or ranks.place.world_size, config.parallel)
    if ranks.place.rank >= world.place.world_size and not spec.at_once:
        return Variant(spec.name)
    data_id, fingerprints = prepared
    data = open_data(config, str(config.root), data_id, fingerprints[spec.name], world)
    match spec.kind:
        case "ours":
            return ConvoyVariant(spec.name, config, world, data)
        case "saving":
            return SavingVariant(spec.name, config, world, data, new_place(str(config.root), world))
        case "baseline":
            return BaselineVariant(spec.name, config, world, data)
        case "sharded baseline":
            from convoy.benchmark.variants.baseline_sharded import ShardedBaselineVariant

            return ShardedBaselineVariant(spec.name, config, world, data)
        case "JAX" | "MLX" | "Horovod":
            assert training is not None
            return FrameworkVariant(spec.name, config, data, training(config, world))
        case kind:
            return PeerVariant(spec.name, config, world, data, build_engine(kind, config, world))


def connect_framework(kind: Kind, ranks: Ranks) -> Callable[[RunConfig, Ranks], FrameworkTraining] | None:
    """Initialise the framework's own process group; returns the constructor of its training, or None if the kind needs
    none. Its package is imported here, and not before. All ranks call it alike."""
    match kind:
        case "JAX":
            from convoy.benchmark.variants import jax_training

            jax_training.connect_processes(ranks)
            return jax_training.JaxTraining
        case "MLX":
            from convoy.benchmark.variants import mlx_training

            return partial(mlx_training.MlxTraining, mlx_training.connect_processes(ranks))
        case "Horovod":
            from convoy.benchmark.variants import horovod_training

            horovod_training.connect_processes(ranks)
            return horovod_training.HorovodTraining
    return None


def build_engine(kind: PeerKind, config: RunConfig, ranks: Ranks) -> PeerTraining:
    """The library's own step over a model that it has distributed. Its package is imported here, and not before."""
    match peers.PEERS[kind].library:
        case "torch":
            return TorchDdp(config, ranks)
        case "accelerate":
            from convoy.benchmark.variants.accelerate import AccelerateFsdp2

            return AccelerateFsdp2(config, ranks)
        case "deepspeed":
            from convoy.benchmark.variants.deepspeed import DeepSpeedZero

            return DeepSpeedZero(config, ranks, peers.PEERS[kind].stage)
