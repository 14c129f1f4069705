"""What this job's commits say, and what the log says of each save."""

import time

import torch

from convoy.checkpoint.commit import Commit, Progress, SamplerPosition
from convoy.checkpoint.restore import restore
from convoy.checkpoint.save import save
from convoy.checkpoint.state import parameter_shapes, put_tensors, tensors_of
from convoy.config.run import config_hash
from convoy.data.sampler import SamplerState, check_resume
from convoy.events.types import CheckpointFailed, CheckpointSaved, Restored
from convoy.gang.assignment import Assignment
from convoy.storage import Store
from convoy.training.model import Trained
from convoy.training.ranks import Ranks


class SupersededError(RuntimeError):
    """Another run has taken the job over; the text is one line."""


class Saver:
    """Saves and restores the training state of one generation."""

    def __init__(self, store: Store, assignment: Assignment, ranks: Ranks, trained: Trained) -> None:
        self._store = store
        self._assignment = assignment
        self._ranks = ranks
        self._trained = trained

    def save(self, progress: Progress) -> CheckpointSaved | CheckpointFailed:
        """Save the state after `progress.step` steps. All ranks call it and get the same answer.

        Raises SupersededError, on all ranks, if the job is another gang's now.
        """
        tensors = tensors_of(self._trained.module, self._trained.optimizer)
        saved = save(self._store, tensors, self._draft(progress, parameter_shapes(tensors)), self._ranks.saving)
        if saved.superseded:
            raise SupersededError(f"step {progress.step}: {saved.error}; its checkpoints count, this gang's do not")
        if saved.error is not None:
            return CheckpointFailed(step=progress.step, error=saved.error)
        return CheckpointSaved(step=progress.step, attempt=saved.attempt, bytes=saved.bytes, seconds=saved.seconds)

    def restore(self) -> tuple[Progress, Restored | None]:
        """Where the generation starts: its parent commit's state, or step 0 as built.

        Raises as `checkpoint.restore`, and ConfigError if the commit is of other data, seed or global batch.
        """
        parent = self._assignment.parent
        if parent is None:
            return Progress(), None
        began = time.perf_counter()
        tensors = tensors_of(self._trained.module, self._trained.optimizer)
        commit = restore(self._store, parent, tensors, self._ranks.saving)
        self._check_same_job(commit)
        put_tensors(self._trained.module, self._trained.optimizer, tensors)
        took = time.perf_counter() - began
        return commit.progress, Restored(from_generation=parent.generation, step=parent.step, seconds=took)

    def _check_same_job(self, commit: Commit) -> None:
        train = self._assignment.config.train
        position = SamplerState(commit.sampler.seed, commit.sampler.next_sample, commit.fingerprint)
        check_resume(position, commit.step, train.global_batch, train.seed, self._assignment.fingerprint)

    def _draft(self, progress: Progress, parameters: dict[str, list[int]]) -> Commit:
        config, mesh = self._assignment.config, self._ranks.mesh
        return Commit(
            generation=self._assignment.generation,
            step=progress.step,
            attempt="",
            parent=self._assignment.parent,
            files={},
            parameters=parameters,
            world_size=self._ranks.place.world_size,
            mesh=dict(zip(mesh.mesh_dim_names or (), mesh.shape, strict=True)),
            progress=progress,
            sampler=SamplerPosition(seed=config.train.seed, next_sample=progress.step * config.train.global_batch),
            rng={"scheme": "keyed by seed, step and global micro batch", "seed": config.train.seed},
            fingerprint=self._assignment.fingerprint,
            data_id=self._assignment.data_id,
            config_hash=config_hash(config),
            versions={"torch": torch.__version__},
            created=0.0,
        )
