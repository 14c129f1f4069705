"""Other libraries that train our model: which exist, what they need, and their steps. Imports no torch."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Literal, NamedTuple, cast

from convoy.benchmark.groups import Group, PeerKind, RefusedCase, VariantSpec
from convoy.benchmark.suites import frameworks
from convoy.config.benchmark import PeerName
from convoy.config.errors import missing_extra
from convoy.config.loader import Tree


class PeerStrategy(NamedTuple):
    """One way of a library to distribute a model."""

    library: PeerName
    ours: str
    """The case of ours that keeps the same state on each rank, with which it is compared."""
    strategy: Literal["ddp", "fsdp"] = "fsdp"
    """`parallel.strategy` of that case."""
    reshards: bool = True
    """`parallel.reshard_after_forward` of that case."""
    stage: int = 0

    @property
    def parallel(self) -> Tree:
        """`parallel` of that case."""
        keys = {"strategy": self.strategy, "reshard_after_forward": self.reshards, "wrap": "block"}
        return {**keys, "shard_size": None, "tensor": 1, "pipeline": 1, "cpu_offload": False}

    @property
    def engine(self) -> Tree | None:
        """`engine` of a run that this way trains in Convoy's own loop; None: it is no engine."""
        if self.library == "torch":
            return None
        return {"name": self.library, "settings": {"zero_optimization": {"stage": self.stage}} if self.stage else {}}


PEERS: dict[PeerKind, PeerStrategy] = {
    "torch DDP": PeerStrategy("torch", "ddp", strategy="ddp"),
    "accelerate FSDP2": PeerStrategy("accelerate", "fsdp"),
    "DeepSpeed ZeRO-1": PeerStrategy("deepspeed", "fsdp, gathered once", reshards=False, stage=1),
    "DeepSpeed ZeRO-2": PeerStrategy("deepspeed", "fsdp, gathered once", reshards=False, stage=2),
    "DeepSpeed ZeRO-3": PeerStrategy("deepspeed", "fsdp", stage=3),
}


def variants_of(libraries: Sequence[PeerName]) -> Iterator[VariantSpec]:
    """One case for each way of each library by itself, which neither cuts the model nor offloads it, whatever ours
    does."""
    for kind, peer in PEERS.items():
        if peer.library in libraries:
            changes = {"parallel": peer.parallel}
            yield VariantSpec(name=kind, kind=kind, baseline=peer.ours, changes=changes)


def engines_of(libraries: Sequence[PeerName]) -> Iterator[VariantSpec]:
    """One case for each way that is an engine of Convoy's, in whose loop it trains; compared with the way by itself."""
    for kind, peer in PEERS.items():
        if peer.library in libraries and peer.engine:
            changes = {"parallel": peer.parallel, "engine": peer.engine}
            yield VariantSpec(name=f"{kind} as engine", baseline=kind, changes=changes)


def refuse_missing_packages(group: Group) -> Group:
    """The group whose cases are refused if their packages are not installed on this machine, or for a reason that holds
    on every machine. If all variants are refused, the group has none."""
    missing = {spec.name: reason for spec in group.variants if (reason := _why_missing(spec))}
    refused = tuple(RefusedCase(spec=s, reason=missing[s.name]) for s in group.variants if s.name in missing)
    variants = tuple(spec for spec in group.variants if spec.name not in missing)
    return group.model_copy(update={"variants": variants, "refused": (*group.refused, *refused)})


def _why_missing(spec: VariantSpec) -> str:
    """Why a case cannot be measured here; empty: it can."""
    if spec.refused:
        return spec.refused
    needed = frameworks.PACKAGES[spec.needed_for] if spec.needed_for else packages(spec)
    absent = next((name for name in needed if find_spec(name) is None), None)
    if absent is None:
        return ""
    if reason := frameworks.MISSING.get(spec.needed_for or spec.kind):
        return reason
    if spec.kind == "baseline":
        return f"{absent} is not installed: pip install transformers"
    return missing_extra(absent, frameworks.EXTRAS.get(spec.needed_for or spec.kind, "peers"))


def packages(spec: VariantSpec) -> list[str]:
    """Packages that a case needs besides our own, whose versions its results record."""
    if spec.kind == "ours" or spec.kind == "saving":
        return [spec.changes["engine"]["name"]] if "engine" in spec.changes else []
    if spec.kind == "baseline":
        return ["transformers"]
    if spec.kind == "sharded baseline":
        return ["transformers", "accelerate"]
    if spec.kind in frameworks.PACKAGES:
        return list(frameworks.PACKAGES[spec.kind])
    return [PEERS[cast(PeerKind, spec.kind)].library]
