"""Buffers that depend on a rank's own samples: rank 0's are everyone's, as under DistributedDataParallel."""

import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from convoy.job.events.registry import Evaluated, StepDone
from convoy.training.batch import Batch
from convoy.training.module_buffers import ModuleBuffers
from convoy.training.step import Stepper
from tests.ranks import RankFailedError
from tests.training.faults import before_step, die_at, spoil_loss
from tests.training.job import Fault, Job, differing, tiny

STEPS = 8
KEPT = {"ema", "calls", "constant", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def a_job(root: Path, build: str = "build_with_buffers", **train: Any) -> Job:
    model = {"build": f"tests.model.user_module:{build}", "vocab_size": 257, "max_sequence_length": 32}
    sizes = {"steps": STEPS, "global_batch": 7, "micro_batch": 2}  # padding on rank 1, and several passes
    return Job(str(root), tiny(model=model, train=sizes | train, checkpoint={"every_steps": 3}))


def note_buffers(folder: Path) -> Fault:
    """Each rank notes in `folder/<step>-<rank>` what its module's persistent buffers hold after so many steps."""

    def fault(rank: int) -> None:
        def note(stepper: Stepper, step: int, _: Sequence[Batch]) -> None:
            module: Any = stepper._engine.module
            held = {name: tensor.clone() for name, tensor in module.module.named_buffers() if name in KEPT}
            (folder / f"{step}-{rank}").write_bytes(pickle.dumps(held))

        before_step(note)

    return fault


def noted(folder: Path, step: int, rank: int) -> dict[str, torch.Tensor]:
    held: dict[str, torch.Tensor] = pickle.loads((folder / f"{step}-{rank}").read_bytes())
    return held


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Undisturbed on two ranks, which note their buffers beside the job."""
    job = a_job(tmp_path_factory.mktemp("whole"))
    job.run(2, note_buffers(Path(job.root)))
    return job


def test_all_ranks_hold_the_same_buffers_between_steps_and_a_save_holds_them(whole: Job) -> None:
    for step in range(STEPS):
        first, second = (noted(Path(whole.root), step, rank) for rank in (0, 1))
        assert first.keys() == KEPT
        assert differing(first, second) == []
    saved = whole.state(whole.commit_of(6))
    assert differing(first := noted(Path(whole.root), 6, 1), {n: saved[f"model.module.{n}"] for n in first}) == []
    assert first["ema"].any()
    assert int(first["calls"]) == 6 * 2, "only the passes of the training steps count"


def test_a_module_with_buffers_resumes_to_the_same_bits(whole: Job, tmp_path: Path) -> None:
    broken = a_job(tmp_path)
    broken.run(2, die_at(5, ranks=[0, 1]), may_die=True)
    broken.run(2)

    assert broken.losses(generation=2) == whole.losses()[3:]
    assert broken.events(Evaluated)[-1].loss == whole.events(Evaluated)[-1].loss
    assert differing(broken.state(), whole.state()) == []


def test_a_skipped_step_leaves_the_buffers_as_they_were(tmp_path: Path) -> None:
    job = a_job(tmp_path, steps=4)

    job.run(2, spoil_loss(lambda loss: loss * torch.nan, steps=[3], rank=1))

    assert job.events(StepDone)[-1].skipped
    assert differing(job.state(job.commit_of(3)), job.state()) == []


def test_a_save_fails_where_buffers_differ_after_all(tmp_path: Path) -> None:
    def leave_alone(_: int) -> None:
        ModuleBuffers.sync_from_rank_0 = lambda self: None  # type: ignore[method-assign]

    told = a_job(tmp_path, steps=2).run(2, leave_alone)

    assert len(set(told)) == 1
    assert re.search(
        r"step 2, was not saved: rank 0: model\.module\.ema .*is not the same on all ranks: rank 1", str(told)
    )


def test_a_buffer_that_grows_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RankFailedError, match=r"build_growing: buffer seen had 8 bytes, and has 16 .*persistent=False"):
        a_job(tmp_path, "build_growing", micro_batch=8).run(1)
