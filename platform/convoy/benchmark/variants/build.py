"""The variants of a gang, built side by side."""

import torch.distributed as dist

from convoy.benchmark.groups import Group, VariantSpec
from convoy.benchmark.suites import peers
from convoy.benchmark.variants.baseline import Baseline
from convoy.benchmark.variants.convoy import Ours
from convoy.benchmark.variants.convoy_saving import Saving
from convoy.benchmark.variants.peer import Peer
from convoy.benchmark.variants.waiting import Waiting
from convoy.benchmark.variants.worlds import world_of
from convoy.data.manifest import fingerprint
from convoy.data.prepare import prepare
from convoy.storage import open_store
from convoy.training.batches import Data
from convoy.training.process_groups import Ranks

AnyVariant = Ours | Baseline | Peer | Waiting

Prepared = tuple[str, dict[str, str]]
"""The data's id, and its fingerprint for each variant by name: one may cut it into other sequences."""


def prepared_data(group: Group, ranks: Ranks) -> Prepared:
    """By rank 0, for all of them, which call it alike."""
    told: list[Prepared] = [("", {})]
    if ranks.first:
        manifest = prepare(group.run.data, open_store(str(group.run.root)))
        found = {spec.name: fingerprint(manifest, spec.config(group.run).data) for spec in group.variants}
        told = [(manifest.id, found)]
    dist.broadcast_object_list(told, group=ranks.control, group_src=0)
    return told[0]


def build(spec: VariantSpec, group: Group, ranks: Ranks, prepared: Prepared) -> AnyVariant:
    """A variant on the ranks that it trains on, ready for its first step; on the others it waits. All ranks call it."""
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
