"""One line for a script with `transformers.Trainer`: progress, notices, verified checkpoints and exact resume.

    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[ConvoyCallback()])
    trainer.train()

The Trainer writes its checkpoints when and where it always does; each is then committed to the job's own. After a
restart, and in a later attempt, `trainer.train()` continues from the newest verified one, by the Trainer's own means:
weights, optimizer, scheduler, random generators, and the position in the data. Outside a gang, nothing of this happens.
"""

import functools
import json
import sys
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, get_last_checkpoint

from convoy import script
from convoy.config.errors import ConfigError
from convoy.script.saves import Saves, check_trains_together

__all__ = ["ConvoyCallback"]


class ConvoyCallback(TrainerCallback):
    """To be given to a Trainer as one of its `callbacks`."""

    def __init__(self) -> None:
        self._saves: Saves | None = None
        self._attached = False
        self._calls = 0

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if not script.in_gang():
            return
        if args.save_only_model:
            raise ConfigError(
                "save_only_model = True: must be False; otherwise a restart has no optimizer state to resume from"
            )
        trainer: Any = _find_trainer(self)
        # What it resumes from is an argument of `train`, and nothing that a callback could set.
        trainer.train = functools.partial(self._train, trainer, trainer.train)
        self._attached = True

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if script.in_gang() and not self._attached:
            raise ConfigError("ConvoyCallback: must be one of the Trainer's `callbacks` when the Trainer is made")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._saves is not None and self._saves.step_done(state.global_step):
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._saves is not None and _can_resume(state, control):
            folder = Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            self._saves.save(state.global_step, folder, may_skip=state.global_step < state.max_steps)

    def _train(
        self, trainer: Any, train: Any, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """`Trainer.train`, from the newest verified checkpoint."""
        check_trains_together(trainer.args.world_size, "TrainingArguments needs use_cpu=True where there is no GPU")
        self._calls += 1
        saves = self._saves = Saves("trainer" if self._calls == 1 else f"trainer-{self._calls}")
        if saves.restore(Path(trainer.args.output_dir)) is None:
            start = _library_checkpoint(resume_from_checkpoint, trainer.args.output_dir)
            saves.begin(0 if start is None else _global_step(start), start)
        else:
            start = saves.folder
        result = train(None if start is None else str(start), *args, **kwargs)
        self._saves = None
        saves.close()
        return result


def _find_trainer(callback: TrainerCallback) -> Trainer:
    """The Trainer whose `__init__` calls this callback: transformers gives its callbacks no reference to it."""
    frame = sys._getframe()
    while True:
        trainer = frame.f_locals.get("self")
        if isinstance(trainer, Trainer) and callback in trainer.callback_handler.callbacks:
            return trainer
        assert frame.f_back is not None, "only a Trainer calls on_init_end"
        frame = frame.f_back


def _library_checkpoint(argument: str | bool | None, output_dir: str) -> Path | None:
    """What the script asks to resume from, as the Trainer understands it."""
    found: Any = get_last_checkpoint(output_dir) if argument is True else argument
    return Path(found) if found else None


def _global_step(checkpoint: Path) -> int:
    return int(json.loads((checkpoint / TRAINER_STATE_NAME).read_text())["global_step"])


def _can_resume(state: TrainerState, control: TrainerControl) -> bool:
    """Whether a Trainer that resumes here does what one that was not interrupted does.

    It knows of no early stop, and would train on. At the last step it would do one more, unless an epoch ends there.
    Source: transformers 5.23, `_inner_training_loop`: the number of steps is only looked at after a step.
    """
    if state.global_step >= state.max_steps:
        return float(state.epoch).is_integer()
    return not control.should_training_stop
