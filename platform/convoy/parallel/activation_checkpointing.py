"""Activation checkpointing: backward recomputes what forward did not keep."""

from collections import defaultdict
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

Mode = Literal["none", "selective", "full"]

# The costly operators whose results selective mode keeps; everything cheap is computed again.
_ATTENTION = {
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
}
_MATMUL = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.linear.default}


def apply_activation_checkpointing(block: nn.Module, mode: Mode) -> nn.Module:
    """The block, wrapped so that backward recomputes its forward as `mode` says.

    selective keeps every attention and every second matmul (the choice of torchtitan, arXiv 2410.06511, sec. 2.2).
    """
    if mode == "none":
        return block
    options: dict[str, Any] = {} if mode == "full" else {"context_fn": _selective_contexts}
    return checkpoint_wrapper(block, preserve_rng_state=True, **options)


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(partial(_keep_policy, defaultdict(int)))


def _keep_policy(counts: dict[str, int], context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    if operator in _ATTENTION:
        return CheckpointPolicy.MUST_SAVE
    if operator in _MATMUL:
        # Forward and recomputation are counted apart: both must make the same choices.
        phase = "recompute" if context.is_recompute else "forward"
        counts[phase] += 1
        if counts[phase] % 2 == 1:
            return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE
