"""DeepSpeed's ZeRO as an engine: stage 1 shards the optimizer's state, 2 gradients too, 3 weights too.

DeepSpeed reduces, clips and updates. Convoy's loop decides from loss and gradient norm whether an update is applied,
and names what each rank's flat partitions hold, so that checkpoints are those of any other engine.
"""

import logging
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from deepspeed.runtime.utils import combine_grad_norm_groups
from deepspeed.utils import logger
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from convoy.checkpoint.state.flat_shard import FlatShard
from convoy.config.engine import DEEPSPEED_KEYS, STAGE
from convoy.config.run import RunConfig
from convoy.config.train import split_batch
from convoy.model.custom import CustomModel
from convoy.parallel.batch_norm import run_batch_norm_in_fp32
from convoy.training.batch import Batch
from convoy.training.build import build_whole_model
from convoy.training.engines.engine import Engine, Held
from convoy.training.optimizer import adamw, moments, set_learning_rate
from convoy.training.process_groups import Ranks


class DeepSpeedEngine(Engine):
    """With bf16, weights are bf16 and their masters fp32, as DeepSpeed has them; gradients are reduced in our type."""

    def __init__(
        self, config: RunConfig, ranks: Ranks, settings: Mapping[str, Any], *, with_weights: bool = True
    ) -> None:
        """settings: DeepSpeed's own, as `engine.settings`. with_weights: False leaves a transformer's weights
        undefined, for a checkpoint to fill."""
        _silence_logging()
        if ranks.device.type == "cpu":
            # DeepSpeed would compile a sum in shared memory that only inference uses, unless this table forbids it.
            vars(deepspeed.ops).setdefault("__compatible_ops__", {})
        os.environ.setdefault("LOCAL_RANK", str(ranks.place.local_rank))  # its launcher would set it
        library_config = deepspeed_config(config, ranks.place.world_size, settings)
        self._rank, self._stage = ranks.place.rank, library_config["zero_optimization"]["stage"]
        model = build_whole_model(config, ranks, with_weights=with_weights)
        self.parameters = sum(p.numel() for p in model.parameters())
        dtypes: dict[str, torch.dtype] = {}
        if isinstance(model, CustomModel) and config.train.param_dtype == "bf16":
            dtypes = {name: buffer.dtype for name, buffer in model.named_buffers()}
            run_batch_norm_in_fp32(model)
            model.register_forward_pre_hook(_cast_inputs)
        self._frozen = _frozen_shards(model)
        self._linear = F.linear
        with self._own_linear():
            self._library, self.zero, *_ = deepspeed.initialize(
                model=model,
                optimizer=adamw(model, config.optimizer),
                config=library_config,
                dist_init_required=False,
            )
        self.module: nn.Module = self._library.module
        for name, dtype in dtypes.items():  # bf16 would round statistics, which other engines save as they are
            buffer = self.module.get_buffer(name)
            buffer.data = buffer.data.to(dtype)
        self._forward: Callable[..., Tensor] = self._library
        self.optimizer = self.zero.optimizer
        self._updated = False
        self._saved: dict[str, Any] | None = None

    def forward_backward(self, batch: Batch, scale: Callable[[], float], *, last: bool) -> Tensor:
        with self._own_linear():
            loss = self._forward(*batch.inputs)
            self._library.backward(loss * scale(), scale_wrt_gas=False)
            if not last:
                self._library.step()  # counts micro batches, and updates after the last one
        return loss.detach()

    def grad_norm(self, sums: Tensor, own_part_done: Callable[[], None]) -> float:
        own_part_done()
        dist.all_reduce(sums)
        kind = type(self.zero)
        if self._stage == 3:
            norm = combine_grad_norm_groups(kind._get_norm_groups(self.zero))
        else:
            norm = kind.scaled_global_norm(self.zero)
        self._set_norm(norm)
        return float(norm)

    def _set_norm(self, norm: Tensor) -> None:
        """Have DeepSpeed's step use this norm, instead of computing it again."""
        self.zero._get_norm_groups = lambda: [norm]
        self.zero.scaled_global_norm = lambda norm_type=2: norm

    def update(self, lr: float, norm: float, factor: float = 1.0) -> None:
        set_learning_rate(self.zero, lr)
        scaler = self.zero.loss_scaler
        # DeepSpeed divides gradients and norm by it.
        before, scaler.cur_scale = scaler.cur_scale, 1.0 / factor if factor else math.inf
        with self._own_linear():
            self._library.step()
        scaler.cur_scale = before
        self._updated = True

    def drop_gradients(self) -> None:
        """After an update there are none. To skip one, DeepSpeed's own step passes over a norm that is not finite."""
        if not self._updated:
            checked = self.zero.__dict__.get("check_grad_overflow")
            self._set_norm(torch.tensor(torch.inf))
            self.zero.check_grad_overflow = True  # else stages 1 and 2 update in bf16 whatever the norm is
            with self._own_linear():
                self._library.step()
            self.zero.check_grad_overflow = checked
        self._updated = False

    def saved_state(self) -> Callable[[], dict[str, Any]]:
        def saved() -> dict[str, Any]:
            if self._saved is None:
                self._saved = self.tensors()
            buffers = self._buffers()  # of all that is saved, a module may replace these
            return self._saved | {"model": self._saved["model"] | buffers} if buffers else self._saved

        return saved

    def _buffers(self) -> dict[str, Tensor]:
        state = self.module.state_dict(keep_vars=True)
        return {name: value.detach() for name, value in state.items() if not isinstance(value, nn.Parameter)}

    def tensors(self) -> dict[str, Any]:
        self._make_optimizer_state()
        model = self._buffers() | {name: shard.weight() for name, shard in self._frozen.items()}
        states: dict[str, dict[str, Tensor]] = {}
        trained = {name: p for name, p in self.module.named_parameters() if p.requires_grad}  # a shared one once
        for name, value in self.module.state_dict(keep_vars=True).items():
            if not (isinstance(value, nn.Parameter) and value.requires_grad):
                continue
            shard = self._shard_of(value)
            model[name] = shard.weight()
            if name in trained:
                states[name] = shard.state(self.optimizer)
        return {"model": model, "optimizer": {"state": states}}

    def _shard_of(self, parameter: Any) -> "_Shard":
        """parameter: with the attributes that DeepSpeed gives it."""
        zero, of = self.zero, parameter
        if self._stage == 3:
            group, begin, count = zero.grad_position[zero.get_param_id(of)]
            start = self._rank * count
            held = min(count, of.ds_numel - start)
            shape, partition = of.ds_shape, zero.fp32_partitioned_groups_flat[group]
        elif (fragment := of._hp_mapping) is not None:
            begin, held = fragment.hp_fragment_address.start, fragment.hp_fragment_address.numel
            start = fragment.lp_fragment_address.start
            shape, partition = of.shape, zero.single_partition_of_fp32_groups[fragment.param_group_index]
        else:
            begin = held = start = 0
            shape, partition = of.shape, zero.single_partition_of_fp32_groups[0]
        return _Shard(partition, begin, held, tuple(shape), start) if held > 0 else _Shard(partition, 0, 0, shape, 0)

    def _make_optimizer_state(self) -> None:
        """What AdamW has before its first step; DeepSpeed makes it only then."""
        for partition in self._partitions():
            if not self.optimizer.state[partition]:
                on = partition.device if self.optimizer.defaults["fused"] else None
                moments = {name: torch.zeros_like(partition) for name in ("exp_avg", "exp_avg_sq")}
                self.optimizer.state[partition] |= {"step": torch.zeros((), device=on), **moments}

    def _partitions(self) -> list[Tensor]:
        """This rank's flat fp32 masters."""
        zero = self.zero
        return list(zero.fp32_partitioned_groups_flat if self._stage == 3 else zero.single_partition_of_fp32_groups)

    @torch.no_grad()
    def put_tensors(self, tensors: dict[str, Any]) -> None:
        """The masters are filled; the weights that compute follow from them."""
        zero = self.zero
        weights = self.module.state_dict(keep_vars=True)
        for name, shard in self._frozen.items():
            if self._stage < 3:
                shard.gather_into(weights[name])
            else:
                weights[name].ds_tensor[: shard.count].copy_(shard.partition)
        if self._stage < 3:
            zero.update_lp_params()
            return
        for group in range(len(zero.fp16_groups)):
            zero._reassign_or_swap_out_partitioned_parameters(group)
        if zero.persistent_parameters:
            zero.persistent_parameters[0].all_gather(zero.persistent_parameters)

    def not_updated(self) -> list[str]:
        """DeepSpeed updates whole partitions: what got no gradient is updated with one of zero."""
        return []

    def held(self) -> Held:
        zero = self.zero
        whole = list(self.module.parameters())
        parameters = [*whole, *(p.ds_tensor for p in whole if hasattr(p, "ds_tensor"))]
        memory = {tensor.untyped_storage().data_ptr() for tensor in parameters}
        updated = [p for group in zero.param_groups for p in group["params"]]
        # In fp32, stage 3 updates the shards themselves.
        masters = [p for p in updated if p.untyped_storage().data_ptr() not in memory]
        return {
            "parameters": [*parameters, *(shard.partition for shard in self._frozen.values())],
            "optimizer": [*masters, *moments(self.optimizer)],
            "gradients": list(self._gradients()),
        }

    def _gradients(self) -> Iterator[torch.Tensor]:
        """Stage 3 keeps this rank's part of them, and a bucket for those that are reduced next, filled or not."""
        part = getattr(self.zero, "grad_partitions_flat_buffer", None)
        buckets = (bucket.buffer for bucket in self.zero.ipg_buckets.values())
        yield from (buffer for buffer in (part, *buckets) if isinstance(buffer, torch.Tensor))

    def weight_bytes(self) -> int:
        return sum(getattr(p, "ds_tensor", p).nbytes for p in self.module.parameters())

    def keep_gathered(self) -> None:
        """ZeRO keeps what `stage3_max_live_parameters` allows."""

    @contextmanager
    def _own_linear(self) -> Iterator[None]:
        """Stage 3 replaces torch's function for the whole process; this limits it to DeepSpeed's own calls."""
        before = F.linear
        F.linear = self._linear
        try:
            yield
        finally:
            self._linear, F.linear = F.linear, before


@dataclass(frozen=True)
class _Shard:
    """What a rank holds of a parameter, within one of its flat partitions."""

    partition: Tensor
    begin: int
    """Its place there."""
    count: int
    shape: tuple[int, ...]
    """The parameter's."""
    start: int
    """Its first element in the parameter."""

    def weight(self) -> FlatShard:
        """The fp32 master."""
        return self._of(self.partition)

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """What the optimizer keeps of it."""
        held = optimizer.state[self.partition]
        return {name: self._of(value) if value.ndim else value for name, value in held.items()}

    def _of(self, flat: Tensor) -> FlatShard:
        return FlatShard(flat.detach()[self.begin : self.begin + self.count], self.shape, self.start)

    def gather_into(self, weight: Tensor) -> None:
        """Give a weight that all ranks have whole the elements of all of them. All ranks call it."""
        ranks, each = dist.get_world_size(), -(-weight.numel() // dist.get_world_size())
        own = self.partition.new_zeros(each)
        own[: self.count] = self.partition
        gathered = own.new_empty(ranks * each)
        dist.all_gather_into_tensor(gathered, own)
        weight.copy_(gathered[: weight.numel()].view(weight.shape))


def _frozen_shards(model: nn.Module) -> dict[str, _Shard]:
    """This rank's part of each weight that is not trained, cut as stage 3 cuts it, by name. DeepSpeed has no masters of
    these: in bf16 it would leave no other copy of what a checkpoint is to have."""
    shards = {}
    for name, weight in model.state_dict(keep_vars=True).items():
        if isinstance(weight, nn.Parameter) and not weight.requires_grad:
            each = -(-weight.numel() // dist.get_world_size())
            start = min(dist.get_rank() * each, weight.numel())
            own = weight.detach().flatten()[start : start + each].clone()
            shards[name] = _Shard(own, 0, len(own), tuple(weight.shape), start)
    return shards


def _cast_inputs(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """As FSDP2's mixed precision casts them."""

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor

    cast_inputs: tuple[Any, ...] = tree_map_only(Tensor, cast, inputs)
    return cast_inputs


def _silence_logging() -> None:
    """Suppress lines on the set-up and on deprecated collectives, which DeepSpeed would print in each step."""
    logger.setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)


def deepspeed_config(config: RunConfig, ranks: int, settings: Mapping[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration: its own defaults, with communication that overlaps computation in all stages, then
    `settings`, then what Convoy sets."""
    train = config.train
    passes, rows = split_batch(train.global_batch, ranks, train.micro_batch)
    zero = {"stage": STAGE, "overlap_comm": True, **settings.get("zero_optimization", {})}
    return {
        **{key: value for key, value in settings.items() if key in DEEPSPEED_KEYS},
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": passes,
        "gradient_clipping": train.clip_norm or 0.0,
        "bf16": {"enabled": train.param_dtype == "bf16"},
        "communication_data_type": {"fp32": "fp32", "bf16": "bfp16"}[train.reduce_dtype],
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,  # offloaded, torch's AdamW updates too: its state is that of any engine
        "steps_per_print": sys.maxsize,
    }
