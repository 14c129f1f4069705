"""What a user's training loop needs from the gang: verified checkpoints, and when to save or stop.

A library's checkpoint is committed file by file, after the library wrote it and before anything can be resumed from
it. What a job starts from may be committed too, before its first step: from then on each restart knows it, whatever the
library left half written on the disk.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from convoy import script
from convoy.checkpoint import Checkpoints, Folder, Pending
from convoy.config.errors import ConfigError
from convoy.script.randomness import RandomStates


def check_trains_together(ranks: int, remedy: str) -> None:
    """Raises ConfigError unless the library trains on all ranks of the gang. ranks: as it sees them. remedy: what to
    set otherwise."""
    gang = int(os.environ.get("WORLD_SIZE", ranks))
    if ranks != gang:
        raise ConfigError(f"ConvoyCallback: each training has {ranks} of the gang's {gang} ranks: {remedy}")


class Saves:
    """The checkpoints of one training of a script, in a gang. All ranks make each call at once."""

    def __init__(self, name: str, state: Mapping[str, Any] | None = None, optimizer: Any = None) -> None:
        """name: no other training of the script has it. state: saved each time, and restored in place. optimizer: as
        of `Checkpoints`.
        """
        self._checkpoints = Checkpoints(
            f"{script.checkpoints_uri()}/{name}", store=script.store_config(), optimizer=optimizer
        )
        self._folder, self._values = Folder(), dict[str, Any]()
        self.random = RandomStates(self._folder.ranks)
        self._state = {"folder": self._folder, "random": self.random, "values": self._values, "state": state or {}}
        self._saved: int | None = None
        """The step of the newest save; None: there is no commit."""
        self._restored: Path | None = None
        self.ordered: script.Notice | None = None
        """What the gang is to do, until the next save."""

    def restore(self, parent: Path) -> dict[str, Any] | None:
        """The values of the newest verified checkpoint, whose files are in `folder` then; None: there is none.

        parent: a folder with space for the files; it need not exist.
        """
        self._restored = self._folder.restore_below(parent)
        restored = self._checkpoints.restore(self._state)
        self._folder.wait_for_all()
        if restored is None:
            return None
        self._saved = restored.step
        return dict(self._values)

    @property
    def folder(self) -> Path | None:
        """Where the restored files are, on this host; None: there are none."""
        folder = self._restored
        return folder if folder is not None and folder.is_dir() and any(folder.iterdir()) else None

    def own_folder(self, parent: Path) -> Path:
        """A folder below `parent` for the ranks of this host, which holds nothing of before."""
        folder = self._folder.own_folder(parent)
        self._folder.wait_for_all()
        shutil.rmtree(folder, ignore_errors=True)
        self._folder.wait_for_all()
        return folder

    def step_done(self, step: int) -> script.Notice | None:
        """`step` steps are done: what the gang is to do now. It does not return from `end`: the script ends there.

        The restored files have been loaded by all ranks.
        """
        self._drop_restored()
        script.progress(step)
        self.ordered = script.notice() or self.ordered
        if self.ordered == "end":
            self.leave()
        return self.ordered

    def begin(self, step: int, folder: Path | None) -> None:
        """Commit what the job starts from: these files, or none. It is durable when this returns."""
        self._begin(step, folder, {}, may_skip=False).wait()
        self._saved = step

    def save(
        self, step: int, folder: Path | None, values: Mapping[str, Any] | None = None, *, may_skip: bool = True
    ) -> None:
        """Commit the files in a folder, unless the step is committed. It does not return where the gang is to end.

        The files may be changed when it returns. folder: None: there are no files. may_skip: as of `Checkpoints.save`,
        unless the gang is to save.
        """
        if self._saved is None or step > self._saved:
            pending = self._begin(step, folder, values or {}, may_skip and self.ordered is None)
            if not pending.skipped:
                self._saved = step
            if self.ordered == "save_and_end":
                pending.wait()
        if self.ordered == "save_and_end":
            self.leave()
        self.ordered = None

    def leave(self) -> NoReturn:
        """End the script because a machine will be reclaimed: nothing that follows its training is to run."""
        self.close()
        raise SystemExit(0)

    def close(self) -> None:
        """Wait until the last save is settled."""
        self._drop_restored()
        self._checkpoints.close()

    def _drop_restored(self) -> None:
        if self._restored is not None:
            self._folder.wait_for_all()
            shutil.rmtree(self._restored, ignore_errors=True)
            self._restored = None

    def _begin(self, step: int, folder: Path | None, values: Mapping[str, Any], may_skip: bool) -> Pending:
        self._values.clear()
        self._values.update(values)
        self.random.gather()
        self._folder.show(folder)
        try:
            pending = self._checkpoints.save(step, self._state, may_skip=may_skip)
            self._folder.wait_for_all()  # until then, another rank may still read the files
        finally:
            self._folder.hide()
        return pending
