"""Pipeline parallelism: each stage holds some of the blocks, and micro batches follow each other through the stages.

The order is 1F1B (Narayanan et al. 2021, PipeDream-flush): a stage begins the backward of the oldest micro batch as
soon as it can, so that as many activations are held as there are stages, whatever the number of micro batches.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from convoy.model.transformer import Transformer

Inputs = tuple[Tensor, Tensor, Tensor | None]
"""Tokens, targets (b, S), and the documents or None."""


def stage_blocks(blocks: int, stages: int, stage: int) -> range:
    """Those that a stage holds: equal shares, and where they cannot be, one more on the first stages: the last one has
    the head as well."""
    each, more = divmod(blocks, stages)
    first = stage * each + min(stage, more)
    return range(first, first + each + (stage < more))


def keep_stage(model: nn.Module, mesh: DeviceMesh) -> None:
    """Leave only what this rank's stage holds, by the names that it has. Before tensor parallelism and what follows.

    model: a transformer on the meta device, without tied embeddings and of no fewer blocks than stages, as `RunConfig`
    makes sure of. mesh: the stages alone.
    """
    assert isinstance(model, Transformer)
    stage, stages = mesh.get_local_rank(), mesh.size()
    own = stage_blocks(len(model.blocks), stages, stage)
    for i in range(len(model.blocks)):
        if i not in own:
            model.blocks[i] = OnOtherStage()
    if stage > 0:
        model.embed = cast(Any, OnOtherStage())
    if stage < stages - 1:
        model.head = cast(Any, OnOtherStage())


class OnOtherStage(nn.Module):
    """What another stage holds: gives on what it is given."""

    def forward(self, hidden_bsd: Tensor, *_: Any) -> Tensor:
        return hidden_bsd


class Pipeline:
    """This rank's stage, and its way of going through micro batches with the others: all ranks make the same calls."""

    def __init__(self, model: nn.Module, mesh: DeviceMesh, dtype: torch.dtype) -> None:
        """model: what `keep_stage` has left, sharded. mesh: the stages alone. dtype: of what stages hand on."""
        self._model = model
        self._group, self.stage, self._stages = mesh.get_group(), mesh.get_local_rank(), mesh.size()
        self._dtype = dtype
        self._schedule: tuple[tuple[int, ...], Any] | None = None
        self._scale = 1.0
        self._losses: list[Tensor] = []
        self._coming: Iterator[dict[str, Any]] = iter(())
        model.register_forward_pre_hook(self._add_inputs, with_kwargs=True)

    @property
    def is_last(self) -> bool:
        """Whether this stage computes the loss."""
        return self.stage == self._stages - 1

    def train(self, batches: Sequence[Inputs], scale: float, on_begin: Callable[[int], None]) -> Tensor:
        """Forward and backward of all micro batches: the sum of their losses, which is 0 on all stages but the last.

        scale: of the loss, for backward. on_begin: called with the number of the micro batch before its forward. Raises
        ValueError for fewer micro batches than stages, and what forward and backward raise, as it is.
        """
        self._scale, self._losses, self._coming = scale, [], self._inputs(batches, on_begin)
        schedule = self._schedule_for(batches)
        # What a stage needs of a micro batch it has; only the first one's input and the targets are counted.
        each = torch.zeros(len(batches))
        try:
            schedule.step(
                *([each] if self.stage == 0 else []), target=each if self.is_last else None, return_outputs=False
            )
        except RuntimeError as error:
            # The schedule raises, from what a stage raised, one of its own that names only shapes.
            if error.__cause__ is None:
                raise
            raise error.__cause__ from error.__cause__.__cause__
        return torch.stack(self._losses).sum() if self._losses else batches[0][0].new_zeros((), dtype=torch.float32)

    @torch.no_grad()
    def evaluate(self, batch: Inputs) -> float:
        """The loss of a batch that all stages have: this stage's part of the way, and 0 on all but the last."""
        tokens_bs = batch[0]
        inputs = self._empty_hidden(batch) if self.stage else tokens_bs
        if self.stage:
            dist.recv(inputs, group=self._group, group_src=self.stage - 1)
        self._coming = self._inputs([batch], lambda _: None)
        result: Tensor = self._model(inputs)
        if self.is_last:
            return float(result)
        dist.send(result.contiguous(), group=self._group, group_dst=self.stage + 1)
        return 0.0

    def _schedule_for(self, batches: Sequence[Inputs]) -> Any:
        """Made once for batches of one shape. Imported here: it takes half a second, and few jobs need it."""
        shape = (len(batches), *batches[0][0].shape)
        if self._schedule is not None and self._schedule[0] == shape:
            return self._schedule[1]
        from torch.distributed.pipelining import PipelineStage, Schedule1F1B

        hidden, loss = self._empty_hidden(batches[0]).requires_grad_(), torch.zeros((), requires_grad=True)
        stage = PipelineStage(
            self._model,
            self.stage,
            self._stages,
            batches[0][0].device,
            input_args=hidden if self.stage else torch.zeros(1),
            output_args=loss if self.is_last else hidden,
            group=self._group,
        )
        schedule = Schedule1F1B(stage, len(batches), loss_fn=self._record_and_scale_loss, scale_grads=False)
        self._schedule = shape, schedule
        return schedule

    def _record_and_scale_loss(self, loss: Tensor, _: Tensor) -> Tensor:
        self._losses.append(loss.detach().clone())
        return loss * self._scale

    def _inputs(self, batches: Sequence[Inputs], on_begin: Callable[[int], None]) -> Iterator[dict[str, Any]]:
        for i, (tokens_bs, targets_bs, documents_bs) in enumerate(batches):
            on_begin(i)
            yield {"tokens_bs": tokens_bs, "targets_bs": targets_bs, "documents_bs": documents_bs}

    def _add_inputs(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The schedule hands on activations alone: what else a stage needs of a micro batch it has itself."""
        own = next(self._coming)
        return (), {**own, "hidden_bsd": args[0] if self.stage else None}

    def _empty_hidden(self, batch: Inputs) -> Tensor:
        """What a stage gets from the one before it."""
        model = self._model
        assert isinstance(model, Transformer)
        return torch.empty(*batch[0].shape, model.config.d_model, dtype=self._dtype, device=batch[0].device)
