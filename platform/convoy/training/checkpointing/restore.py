"""Where a generation starts: the newest commit of its lineage that is whole, or the beginning."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import Commit, Progress, TensorInfo
from convoy.data.sampler import SamplerState, check_resume
from convoy.gang.task import Assignment
from convoy.job.events.log import EventWriter
from convoy.job.events.types import CheckpointDamaged, Restored
from convoy.job.lineage import CommitRef, candidates, read_history
from convoy.storage import Store, StoreUnavailable
from convoy.training.build import Trained
from convoy.training.checkpointing.same_model import PREFIX, check_same_model
from convoy.training.process_groups import Ranks

if TYPE_CHECKING:
    from convoy.checkpoint.restore import load


@dataclass(frozen=True)
class Start:
    """What the generation goes on from."""

    progress: Progress
    parent: CommitRef | None
    """An older commit than the generation was formed to go on from, where that turned out to be damaged."""


def restore(assignment: Assignment, ranks: Ranks, trained: Trained, tiers: list[Store], events: EventWriter) -> Start:
    """Fill model and optimizer. All ranks call it and get the same; without a parent the state stays as built.

    A commit whose weights or optimizer state hold NaN or infinity is passed over: every step from it would fail.
    Raises, on all ranks alike, StoreUnavailable, CheckpointError where no commit is whole, and ConfigError for a
    commit of another model, format, data, seed or global batch.
    """
    if assignment.parent is None:
        return Start(Progress(), None)
    # A new job's first step does not wait for what reads checkpoints.
    from convoy.checkpoint.restore import load
    from convoy.checkpoint.state.tensors import put_tensors, tensors_of
    from convoy.checkpoint.verify.marks import mark_damaged

    commits = _candidates(assignment, ranks, tiers)
    tensors = tensors_of(trained.module, trained.optimizer, trained.rows)
    everyones = _everyones(tensors, ranks, trained)
    shapes = {name.removeprefix(PREFIX): info.shape for name, info in everyones.items() if name.startswith(PREFIX)}

    def check(commit: Commit) -> None:
        check_same_model(commit, shapes)
        _check_same_data(assignment, commit)

    def damaged(damage: load.Damage) -> None:
        """Rank 0: keep the evidence, and tell."""
        tier, ref = tiers[damage.tier], damage.ref
        mark_damaged(tier, ref, damage.error, host=damage.host, confirmed_by=damage.confirmed_by)
        told = CheckpointDamaged(from_generation=ref.generation, step=ref.step, tier=tier.uri, error=damage.error)
        events.append(told)

    found = bad = None
    while found is None or bad:
        found = load.restore(
            tiers, commits, tensors, group=ranks.saving, on_damage=damaged, check=check, elsewhere=everyones
        )
        if found is None:
            raise CheckpointError(f"{assignment.job_uri}: {bad or 'the job had checkpoints, and none is there now'}")
        put_tensors(trained.module, trained.optimizer, tensors)
        bad = not_finite(trained, ranks)
        if bad and commits is not None:  # not marked in the storage: there it is as it was written
            at = [ref for ref, _ in commits].index(found.commit.ref)
            (ref, places), commits = commits[at], commits[at + 1 :]
            bad = f"{ref.name}: {bad}"
            for place in places:
                events.append(
                    CheckpointDamaged(from_generation=ref.generation, step=ref.step, tier=tiers[place].uri, error=bad)
                )
    commit, tier = found.commit, tiers[found.tier].uri
    if ranks.first:
        told = Restored(
            from_generation=commit.generation, step=commit.step, seconds=found.seconds, bytes=commit.bytes, tier=tier
        )
        events.append(told)
    return Start(commit.progress, commit.ref)


def not_finite(trained: Trained, ranks: Ranks) -> str | None:
    """What in the weights or the optimizer's state is NaN or infinite: the first that a rank finds; None: nothing.
    All ranks call it and get the same."""
    told: list[str | None] = [None] * ranks.place.world_size
    dist.all_gather_object(told, _own_not_finite(trained), group=ranks.saving)
    return next(filter(None, told), None)


def _own_not_finite(trained: Trained) -> str | None:
    weights = ((name, weight) for name, weight in trained.module.named_parameters() if weight.requires_grad)
    for name, weight in weights:  # a frozen one may hold infinity, such as a mask
        state = trained.optimizer.state.get(weight, {})
        for what, value in {"the weights": weight.detach(), **state}.items():
            local = getattr(value, "_local_tensor", value)
            if isinstance(local, torch.Tensor) and not torch.isfinite(local).all():
                return f"{what} of {name} hold values that are not finite"
    return None


def _everyones(tensors: dict[str, Any], ranks: Ranks, trained: Trained) -> dict[str, TensorInfo]:
    """The tensors of the whole state: each stage of a pipeline has those of its own blocks alone."""
    from convoy.checkpoint.restore.compatibility import infos
    from convoy.checkpoint.state.tree import flatten

    own = infos(flatten(tensors).tensors)
    if trained.pipeline is None:
        return own
    told: list[Any] = [None] * ranks.place.world_size
    dist.all_gather_object(told, own, group=ranks.saving)
    return {name: info for some in told for name, info in some.items()}


def _candidates(assignment: Assignment, ranks: Ranks, tiers: list[Store]) -> "load.Candidates | None":
    """What rank 0 finds in the lineage of the gang's own generation; on the other ranks None."""
    found: load.Candidates | None = None
    failure: StoreUnavailable | None = None
    if ranks.first:
        try:
            history = read_history(tiers[0], tiers[1:])
            ours = {n: g for n, g in history.generations.items() if n <= assignment.generation}
            found = candidates(replace(history, generations=ours))
        except StoreUnavailable as error:
            failure = error
    told: list[StoreUnavailable | None] = [failure]
    dist.broadcast_object_list(told, group=ranks.saving, group_src=0)
    if told[0] is not None:
        raise told[0]
    return found


def _check_same_data(assignment: Assignment, commit: Commit) -> None:
    train = assignment.config.train
    if commit.sampler is None:
        return
    position = SamplerState(commit.sampler.seed, commit.sampler.next_sample, commit.fingerprint)
    check_resume(position, commit.step, train.global_batch, train.seed, assignment.fingerprint)
