"""Where a generation starts: the newest commit of its lineage that is whole, or the beginning."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from convoy.checkpoint.errors import CheckpointError
from convoy.checkpoint.format import Commit, Progress, TensorInfo
from convoy.checkpoint.group import all_gather_objects
from convoy.config.errors import ConfigError
from convoy.data.sampler import SamplerState, check_resume
from convoy.gang.task import Assignment
from convoy.job.events.log import EventWriter
from convoy.job.events.registry import CheckpointDamaged, Restored
from convoy.job.lineage import CommitRef, read_history, restore_candidates
from convoy.storage import Store, StoreUnavailable
from convoy.training.data import DATA_STATE_KEY, TrainingData
from convoy.training.engines.engine import Engine
from convoy.training.process_groups import Ranks

if TYPE_CHECKING:
    from convoy.checkpoint.restore import load

PREFIX = "model."
"""Prefix of the weights' names in a commit."""


@dataclass(frozen=True)
class StartPoint:
    """Where the generation starts."""

    progress: Progress
    parent: CommitRef | None
    """The commit that was restored: an older one than the generation was formed with, where that is damaged."""


def restore_newest_commit(
    assignment: Assignment,
    ranks: Ranks,
    engine: Engine,
    data: TrainingData,
    tiers: list[Store],
    events: EventWriter,
) -> StartPoint:
    """Fill model and optimizer, and restore the data's position. All ranks call it and get the same; without a parent
    the state stays as built.

    A commit whose weights or optimizer state hold NaN or infinity is passed over: every step from it would fail.
    Raises, on all ranks alike, StoreUnavailable, CheckpointError where no commit is whole, and ConfigError for a
    commit of another model, format, data, seed or global batch, or from whose position the data cannot continue.
    """
    if assignment.parent is None:
        return StartPoint(Progress(), None)
    # A new job's first step does not wait for what reads checkpoints.
    from convoy.checkpoint.restore import load
    from convoy.checkpoint.verify.marks import mark_damaged

    commits = _read_candidates(assignment, ranks, tiers)
    tensors = engine.tensors()
    position: dict[str, Any] = {}  # to be filled
    if data.has_position:
        tensors[DATA_STATE_KEY] = position
    whole_state = _gather_tensor_infos(tensors, ranks, engine)
    shapes = {name.removeprefix(PREFIX): info.shape for name, info in whole_state.items() if name.startswith(PREFIX)}

    def check_fit(commit: Commit) -> None:
        check_same_model(commit, shapes)
        _check_same_data(assignment, commit)

    def log_damage(damage: load.Damage) -> None:
        """On rank 0: keep the evidence, and log it."""
        tier, ref = tiers[damage.tier], damage.ref
        mark_damaged(tier, ref, damage.error, host=damage.host, confirmed_by=damage.confirmed_by)
        events.append(
            CheckpointDamaged(from_generation=ref.generation, step=ref.step, tier=tier.uri, error=damage.error)
        )

    restored = bad = None
    while restored is None or bad:
        restored = load.restore(
            tiers, commits, tensors, group=ranks.saving, on_damage=log_damage, check=check_fit, other_ranks=whole_state
        )
        if restored is None:
            raise CheckpointError(f"{assignment.job_uri}: {bad or 'the job had checkpoints, and none is there now'}")
        engine.put_tensors(tensors)
        bad = find_nonfinite(tensors, ranks)
        if bad and commits is not None:  # not marked in the storage: there it is as it was written
            at = [ref for ref, _ in commits].index(restored.commit.ref)
            (ref, places), commits = commits[at], commits[at + 1 :]
            bad = f"{ref.name}: {bad}"
            for place in places:
                events.append(
                    CheckpointDamaged(from_generation=ref.generation, step=ref.step, tier=tiers[place].uri, error=bad)
                )
    if data.has_position:
        data.restore_position(position)
    commit, tier = restored.commit, tiers[restored.tier].uri
    if ranks.first:
        event = Restored(
            from_generation=commit.generation, step=commit.step, seconds=restored.seconds, bytes=commit.bytes, tier=tier
        )
        events.append(event)
    return StartPoint(commit.progress, commit.ref)


def find_nonfinite(tensors: Mapping[str, Any], ranks: Ranks) -> str | None:
    """The first trained weight or its optimizer state that is NaN or infinite, as a rank finds it; None: all are
    finite. All ranks call it and get the same. tensors: as `Engine.tensors` returns them."""
    return next(filter(None, all_gather_objects(_find_own_nonfinite(tensors), ranks.saving)), None)


@torch.no_grad()
def _find_own_nonfinite(tensors: Mapping[str, Any]) -> str | None:
    from convoy.checkpoint.state.layout import local_tensor

    for name, state in tensors["optimizer"]["state"].items():  # a frozen weight may hold infinity, such as a mask
        for what, value in {"the weights": tensors["model"][name], **state}.items():
            if isinstance(value, torch.Tensor) and not torch.isfinite(local_tensor(value)).all():
                return f"{what} of {name} hold values that are not finite"
    return None


def _gather_tensor_infos(tensors: dict[str, Any], ranks: Ranks, engine: Engine) -> dict[str, TensorInfo]:
    """The tensors of the whole state: each stage of a pipeline has those of its own blocks alone."""
    from convoy.checkpoint.restore.compatibility import tensor_infos
    from convoy.checkpoint.state.tree import flatten

    own = tensor_infos(flatten(tensors).tensors)
    if engine.pipeline is None:
        return own
    return {name: info for some in all_gather_objects(own, ranks.saving) for name, info in some.items()}


def _read_candidates(assignment: Assignment, ranks: Ranks, tiers: list[Store]) -> "load.Candidates | None":
    """The lineage of the gang's own generation, as rank 0 reads it; on the other ranks None."""
    commits: load.Candidates | None = None
    failure: StoreUnavailable | None = None
    if ranks.first:
        try:
            history = read_history(tiers[0], tiers[1:])
            ours = {n: g for n, g in history.generations.items() if n <= assignment.generation}
            commits = restore_candidates(replace(history, generations=ours))
        except StoreUnavailable as error:
            failure = error
    box: list[StoreUnavailable | None] = [failure]
    dist.broadcast_object_list(box, group=ranks.saving, group_src=0)
    if box[0] is not None:
        raise box[0]
    return commits


def _check_same_data(assignment: Assignment, commit: Commit) -> None:
    train = assignment.config.train
    if commit.sampler is None:
        return
    position = SamplerState(commit.sampler.seed, commit.sampler.next_sample, commit.fingerprint)
    check_resume(position, commit.step, train.global_batch, train.seed, assignment.fingerprint)


def check_same_model(commit: Commit, model_shapes: Mapping[str, Sequence[int]]) -> None:
    """Raises ConfigError unless the model has the tensors that were saved, no more, no fewer, of the same shapes.

    model_shapes: global shape of each tensor of the model to be filled, by name.
    """
    saved = {name.removeprefix(PREFIX): i.shape for name, i in commit.tensors.items() if name.startswith(PREFIX)}
    for name in [*model_shapes, *(name for name in saved if name not in model_shapes)]:
        own, there = model_shapes.get(name), saved.get(name)
        if there is None or own is None or list(own) != list(there):
            raise ConfigError(
                f"model: {name} is {_shape_text(own)} in this configuration, and {_shape_text(there)} in the "
                f"checkpoint of step {commit.step}; keep the model of the job, or name a new job"
            )


def _shape_text(shape: Sequence[int] | None) -> str:
    return "absent" if shape is None else str(tuple(shape))
