"""One line for a script with Lightning: progress, notices, verified checkpoints and exact resume.

    trainer = L.Trainer(max_epochs=3, callbacks=[ConvoyCallback()])
    trainer.fit(model, loader)

Whenever Lightning's own `ModelCheckpoint` has saved, and at notices, a checkpoint of Lightning's is committed to the
job's own. After a restart, and in a later attempt, `trainer.fit()` continues from the newest verified one. Lightning
restores weights, optimizers, schedulers and its loops. What it does not know is added: the states of the random
generators, and which batches of the epoch are done. Outside a gang, nothing of this happens.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint

from convoy import script
from convoy.config.errors import ConfigError
from convoy.script.saves import Saves, check_trains_together

__all__ = ["ConvoyCallback"]

FILE = "lightning.ckpt"


class ConvoyCallback(Callback):
    """To be given to a Trainer as one of its `callbacks`."""

    def __init__(self) -> None:
        self._saves: Saves | None = None
        self._last = _LastCallback(self)
        self._calls = 0
        self._steps = 0
        """Steps that are reported."""
        self._saved = 0
        """Step of the newest save."""
        self._sanity_steps: int | float = 0
        """As the script set them, while a resume leaves them out."""
        self._data_began = False
        """The first epoch of this call of `fit` has its data already."""

    def setup(self, trainer: Any, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and script.in_gang():
            trainer.callbacks = [*(each for each in trainer.callbacks if each is not self._last), self._last]

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not script.in_gang():
            return
        remedy = "set devices, num_nodes and strategy of the Trainer to the gang's"
        check_trains_together(trainer.world_size, remedy)
        self._calls += 1
        saves = self._saves = Saves("lightning" if self._calls == 1 else f"lightning-{self._calls}")
        self._batches: int | None = None
        values = saves.restore(Path(trainer.default_root_dir))
        if values is not None and saves.folder is not None:
            # Lightning restores everything at once here, after any checkpoint that the script asked for. What is read
            # was written by this job, and is verified.
            trainer._checkpoint_connector.restore(saves.folder / FILE, weights_only=False)
            self._batches = values["batches"]
            self._rewind()
            # The sanity check of the validation was done when the training began, and may have changed the module.
            self._sanity_steps, trainer.num_sanity_val_steps = trainer.num_sanity_val_steps, 0
        self._steps = self._saved = trainer.global_step
        self._data_began = True
        saves.random.note_epoch()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._saves is None:
            return
        self._saves.random.watch(_loaders(trainer))
        if self._batches is None:
            return
        trainer.num_sanity_val_steps = self._sanity_steps
        known = bool(self._batches) and _position_is_restored(trainer)
        # The first epoch's data began as they do in each run. Lightning begins those of others before the samplers
        # know which epoch it is, and a loader that knows its position does not know where a next epoch begins.
        if trainer.current_epoch and not known:
            self._rewind(_loaders(trainer))
            _begin_data(trainer)
        if self._batches:
            _pass_over(trainer, 0 if known else self._batches)
            self._saves.random.continue_from_save()
            self._data_began = False

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._saves is not None and not self._data_began:
            self._saves.random.note_epoch(_loaders(trainer))
        self._data_began = False

    def batch_done(self, trainer: Trainer) -> None:
        """All other callbacks know that a batch is done."""
        if self._saves is None or trainer.global_step == self._steps:
            return  # gradients accumulate
        self._steps = trainer.global_step
        self._saves.step_done(self._steps)
        loop: Any = trainer.fit_loop.epoch_loop
        # What follows the last batch of an epoch, or a validation after this batch, would not be repeated after a
        # restart: `epoch_done` or a later batch saves after that.
        if self._save_is_due(trainer) and not (
            loop.batch_progress.is_last_batch or loop._should_check_val_fx(trainer.fit_loop._data_fetcher)
        ):
            self._save(trainer, loop.batch_progress.current.ready)

    def epoch_done(self, trainer: Trainer) -> None:
        """All other callbacks and the module know that an epoch is done."""
        if self._saves is None or trainer.should_stop:
            return  # a stop is not in Lightning's checkpoints: resumed here, it would train on
        # With `max_steps` set, Lightning would take an epoch that is done for one that it is in: a later batch saves.
        if trainer.max_steps == -1 and self._save_is_due(trainer):
            self._save(trainer, 0)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._saves is not None:
            self._saves.close()
            self._saves = None

    def _rewind(self, loaders: Sequence[Any] = ()) -> None:
        """Put the random generators as they were when the data of the epoch began that continues."""
        assert self._saves is not None
        if self._batches:
            self._saves.random.begin_epoch_again(loaders)
        else:
            self._saves.random.continue_from_save(loaders)
            self._saves.random.note_epoch(loaders)

    def _save_is_due(self, trainer: Any) -> bool:
        assert self._saves is not None
        if self._saves.ordered:
            return True
        saved = [each._last_global_step_saved for each in trainer.callbacks if isinstance(each, ModelCheckpoint)]
        return max(saved, default=0) > self._saved

    def _save(self, trainer: Trainer, batches: int) -> None:
        """batches: of the epoch, that are done; 0: all of it is done."""
        assert self._saves is not None
        folder = self._saves.own_folder(Path(trainer.default_root_dir))
        trainer.save_checkpoint(folder / FILE, weights_only=False)
        last = trainer.max_epochs == trainer.current_epoch + 1 and not batches
        self._saves.save(trainer.global_step, folder, {"batches": batches}, may_skip=not last)
        self._saved = trainer.global_step
        shutil.rmtree(folder, ignore_errors=True)


class _LastCallback(Checkpoint):
    """Lightning calls subclasses of `Checkpoint` last, and at the end of an epoch even after the module itself."""

    def __init__(self, owner: ConvoyCallback) -> None:
        self._owner = owner

    def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
        self._owner.batch_done(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._owner.epoch_done(trainer)


def _loaders(trainer: Trainer) -> list[Any]:
    combined: Any = trainer.fit_loop._combined_loader
    return list(combined.flattened)


def _position_is_restored(trainer: Trainer) -> bool:
    """Whether the loaders know by themselves which batches are done, as torchdata's StatefulDataLoader does."""
    stateful = [hasattr(loader, "load_state_dict") for loader in _loaders(trainer)]
    if any(stateful) and not all(stateful):
        raise ConfigError("train_dataloaders: all or none of them must have `state_dict` and `load_state_dict`")
    return all(stateful)


def _begin_data(trainer: Trainer) -> None:
    """Begin the data of the epoch again, as an uninterrupted run does."""
    loop: Any = trainer.fit_loop
    for loader in _loaders(trainer):
        for sampler in (loader.sampler, getattr(loader.batch_sampler, "sampler", None)):
            if sampler is not None and hasattr(sampler, "set_epoch"):
                sampler.set_epoch(trainer.current_epoch)
    iter(loop._data_fetcher)


def _pass_over(trainer: Trainer, batches: int) -> None:
    fetcher: Any = trainer.fit_loop._data_fetcher
    for _ in range(batches):
        next(fetcher)
    fetcher.fetched -= batches  # the loop adds those that are done
