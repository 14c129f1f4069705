"""One optimizer step of one rank."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.distributed as dist

from convoy.checkpoint.save.queue import StatusCounts
from convoy.job.events.registry import Evaluated
from convoy.model.custom import CustomModel, CustomTask
from convoy.training.batch import Batch
from convoy.training.engines.engine import Engine
from convoy.training.measure.clock import Clock
from convoy.training.module_buffers import ModuleBuffers
from convoy.training.process_groups import Ranks
from convoy.training.randomness import seed_generators

StopReason = Literal["preempted_unsaved", "preempted", "max_hours", "max_cost_usd", "requested"]
Vote = StopReason | Literal["save"]
"""save: commit the state after this step, and continue."""

URGENT_REASONS: tuple[StopReason, ...] = ("requested", "preempted", "preempted_unsaved")
"""Training that ends for one of these waits for no more than the commit."""

_REASONS: tuple[StopReason, ...] = get_args(StopReason)
"""The first of several counts: those with the least time come first."""


@dataclass(frozen=True)
class StepAgreement:
    """The result of an exchange; the same on every rank."""

    tokens: int
    """Targets with weight in this step's global batch."""
    stop: StopReason | None
    """End after this step; None: continue."""
    save_status: StatusCounts
    """Sums over all ranks: how the save under way stood when each began the exchange."""
    save: bool = False
    """Save after this step."""


class StepExchange:
    """One all-reduce per step on the control group, in flight while the forward runs."""

    def __init__(self, control: dist.ProcessGroup, ranks_per_sample: int = 1) -> None:
        """ranks_per_sample: number of ranks that have the same tokens."""
        self._control = control
        self._ranks_per_sample = ranks_per_sample
        self._values = torch.zeros(0, dtype=torch.int64)
        self._work: dist.Work | None = None

    def begin(self, tokens: int, vote: Vote | None, save_status: StatusCounts) -> None:
        """Offer this rank's token count, its wish to stop or to save, and what it knows of the save under way."""
        votes = [int(vote == reason) for reason in _REASONS]
        self._values = torch.tensor([tokens, int(vote == "save"), *votes, *save_status.to_list()], dtype=torch.int64)
        self._work = dist.all_reduce(self._values, group=self._control, async_op=True)

    def finish(self) -> StepAgreement:
        """The sums over all ranks, and what they agree on; waits for the slowest rank to begin."""
        assert self._work is not None
        self._work.wait()
        self._work = None
        tokens, save, *rest = self._values.tolist()
        votes, save_status = rest[: len(_REASONS)], StatusCounts.from_list(rest[len(_REASONS) :])
        stop = next((reason for reason, count in zip(_REASONS, votes, strict=True) if count), None)
        return StepAgreement(tokens // self._ranks_per_sample, stop, save_status, save > 0)


class UrgentStop:
    """Whether any rank must stop soon: one all-reduce on the control group, in flight while the ranks work."""

    def __init__(self, control: dist.ProcessGroup) -> None:
        self._control = control
        self._votes = torch.zeros((), dtype=torch.int64)
        self._work: dist.Work | None = None

    def begin(self, urgent: bool) -> None:
        """Offer whether this rank must."""
        self._votes = torch.tensor(int(urgent))
        self._work = dist.all_reduce(self._votes, group=self._control, async_op=True)

    def finish(self) -> bool:
        """The same on all ranks; waits for the slowest one to begin."""
        assert self._work is not None
        self._work.wait()
        self._work = None
        return bool(self._votes)


@dataclass(frozen=True)
class StepResult:
    """What a step did; the same on every rank."""

    loss: float
    """Nats per token over the global batch."""
    grad_norm: float
    """Over all ranks, before clipping."""
    tokens: int
    skipped: bool
    """Loss or gradient was not finite: the update was not applied."""
    stop: StopReason | None
    save_status: StatusCounts
    """Of the save under way, over all ranks."""
    save: bool = False
    """Some rank wants the state saved now."""


class Stepper:
    """Forward and backward over the micro batches, one exchange, clipping, one update."""

    def __init__(
        self,
        engine: Engine,
        seed: int,
        ranks_per_sample: int,
        exchange: StepExchange,
        clock: Clock,
        *,
        training_group: dist.ProcessGroup | None = None,
        buffers: ModuleBuffers | None = None,
        advance: Callable[[], None] = lambda: None,
    ) -> None:
        """seed: of all randomness. ranks_per_sample: number of ranks that have the same tokens. training_group: the
        ranks that train together; None: the default group. buffers: those that a forward may change; None: there are
        none. advance: called as a stage begins a micro batch; stages do so at different times."""
        self._engine = engine
        self._task = engine.module if isinstance(engine.module, CustomTask) else None
        self._is_users = isinstance(engine.module, CustomModel)
        self._seed = seed
        self._exchange = exchange
        self._clock = clock
        self._buffers = buffers
        self._advance = advance
        self._batches = dist.get_world_size(training_group) // ranks_per_sample

    def __call__(
        self, batches: Sequence[Batch], step: int, lr: float, vote: Vote | None, save_status: StatusCounts
    ) -> StepResult:
        """All ranks call it with the same `step` (steps done before it) and equally many, equally large batches."""
        self._exchange.begin(sum(b.weight for b in batches), vote, save_status)
        loss_sum, agreed = (self._run_passes if self._engine.pipeline is None else self._run_pipeline)(batches, step)
        weights = () if self._task is None else (self._task.take_weight(),)
        sums = torch.stack([loss_sum.double(), *weights])
        # The rank's own part of the norm counts as optimizer; what follows waits for the others.
        norm = self._engine.grad_norm(sums, lambda: self._clock.end_phase("optimizer"))
        loss, factor = self._mean_loss(sums, agreed.tokens)
        norm *= factor
        # Loss and norm are the same on all ranks, so all of them judge alike.
        skipped = not (math.isfinite(loss) and math.isfinite(norm))
        if self._buffers is not None:
            self._buffers.put_back() if skipped else self._buffers.sync_from_rank_0()
        self._clock.end_phase("exchange")
        if not skipped:
            self._engine.update(lr, norm, factor)
        self._engine.drop_gradients()
        self._clock.end_phase("optimizer")
        return StepResult(loss, norm, agreed.tokens, skipped, agreed.stop, agreed.save_status, agreed.save)

    def _run_passes(self, batches: Sequence[Batch], step: int) -> tuple[torch.Tensor, StepAgreement]:
        """Forward and backward of each: the sum of their losses, and what the ranks exchanged meanwhile."""
        loss_sum, agreed = torch.zeros((), device=batches[0].device), None

        def scale() -> float:
            nonlocal agreed
            self._clock.end_phase("forward")
            if agreed is None:
                agreed = self._exchange.finish()
                self._clock.end_phase("exchange")
            return self._loss_scale(agreed)

        for i, batch in enumerate(batches):
            seed_randomness(self._seed, step, batch.index, batch.device, python=self._is_users)
            loss_sum += self._engine.forward_backward(batch, scale, last=i == len(batches) - 1)
            self._clock.end_phase("backward")
        assert agreed is not None
        return loss_sum, agreed

    def _run_pipeline(self, batches: Sequence[Batch], step: int) -> tuple[torch.Tensor, StepAgreement]:
        """As `_run_passes`, with all stages at work; forward and backward take turns, and count as backward."""
        pipeline, agreed = self._engine.pipeline, self._exchange.finish()
        assert pipeline is not None
        self._clock.end_phase("exchange")

        def seed_and_advance(number: int) -> None:
            batch = batches[number]
            seed_randomness(self._seed, step, batch.index, batch.device, pipeline.stage)
            self._advance()

        loss_sum = pipeline.train([b.inputs for b in batches], self._loss_scale(agreed), seed_and_advance)
        self._clock.end_phase("backward")
        return loss_sum, agreed

    def _loss_scale(self, agreed: StepAgreement) -> float:
        """Engines average gradients over ranks; the loss is to be the mean over the global batch's tokens, or over the
        weights of its samples, for which `_mean_loss` corrects."""
        return self._batches / max(1, agreed.tokens)

    def _mean_loss(self, sums: torch.Tensor, tokens: int) -> tuple[float, float]:
        """The loss over the global batch, and what gradients of the mean over its tokens, or samples, are to be
        multiplied by. sums: over all ranks, of the loss and with a task of its weight."""
        if self._task is None:
            return sums.item() / max(1, tokens), 1.0
        loss, weight = sums.tolist()
        return (loss / weight, tokens / weight) if weight else (loss, 0.0)


def seed_randomness(
    seed: int, step: int, micro_batch: int, device: torch.device, stage: int = 0, *, python: bool = False
) -> None:
    """Key the generators by (seed, step, global micro batch), so that dropout does not depend on the ranks; and by the
    stage of a pipeline, whose blocks would else drop the same as those of the first one. python: as of
    `seed_generators`."""
    place = f"{seed}/{step}/{micro_batch}" + (f"/{stage}" if stage else "")
    seed_generators(place, device, python=python)


@torch.no_grad()
def evaluate(
    engine: Engine,
    ranks: Ranks,
    batches: Sequence[Batch],
    token_bytes_v: torch.Tensor | None,
    step: int,
    on_batch_done: Callable[[], None],
    is_urgent: Callable[[], bool],
) -> Evaluated | None:
    """Mean loss over the targets, or samples, of all ranks' batches. All ranks call it, with equally many batches.

    token_bytes_v: UTF-8 bytes of each id (V,); then bits per byte = loss in nats / ln 2 / bytes, all summed.
    on_batch_done: called after each batch. is_urgent: called before each: where one rank must stop soon, all return
    None after that batch.
    """
    began = time.perf_counter()
    module, pipeline = engine.module, engine.pipeline
    module.eval()
    nats, weight, tokens, text_bytes = 0.0, 0.0, 0, 0
    urgent_stop, stopped = UrgentStop(ranks.control), False
    for batch in batches:
        urgent_stop.begin(is_urgent())
        nats += float(module(*batch.inputs)) if pipeline is None else pipeline.evaluate(batch.inputs)
        weight += float(module.take_weight()) if isinstance(module, CustomTask) else batch.weight
        tokens += batch.weight
        if token_bytes_v is not None:
            _, targets_bs, _ = batch.inputs
            counted = targets_bs[targets_bs >= 0].cpu()
            text_bytes += int(token_bytes_v[counted].sum())
        on_batch_done()
        stopped = urgent_stop.finish()
        if stopped:
            break
    module.train()
    if stopped:
        return None
    sums = torch.tensor([nats, weight, tokens, text_bytes], dtype=torch.float64)
    dist.all_reduce(sums, group=ranks.control)
    nats, *counts = sums.tolist()
    weight, total, total_bytes = (count / ranks.ranks_per_sample for count in counts)
    return Evaluated(
        step=step,
        loss=nats / (weight or 1.0),
        bits_per_byte=nats / math.log(2) / total_bytes if total_bytes else None,
        tokens=int(total),
        seconds=time.perf_counter() - began,
    )
