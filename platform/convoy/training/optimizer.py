"""AdamW over sharded master weights, and the learning rate of each step."""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from convoy.config.errors import ConfigError
from convoy.config.train import OptimizerConfig, ScheduleConfig


def build_optimizer(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """`adamw` of a model that FSDP2 spread. Raises RuntimeError if it is not sharded yet."""
    unsharded = [name for name, p in model.named_parameters() if p.requires_grad and not isinstance(p, DTensor)]
    if unsharded:
        raise RuntimeError(f"optimizer built before sharding: it would train nothing ({unsharded[0]} is not a DTensor)")
    return adamw(model, config)


def adamw(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """AdamW of whatever parameters the model has now, with decay on matrices only."""
    trained = [p for p in model.parameters() if p.requires_grad]
    embeddings = {p for each in model.modules() if isinstance(each, nn.Embedding) for p in each.parameters()}
    undecayed = set() if config.decay_embeddings else embeddings
    decayed = [p for p in trained if p.ndim >= 2 and p not in undecayed]
    plain = [p for p in trained if p.ndim < 2 or p in undecayed]
    groups = [
        {"params": decayed, "weight_decay": config.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=config.lr, betas=config.betas, eps=config.eps, fused=config.fused
    )


def without_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Names of trained parameters that no update has reached."""
    return [name for name, p in model.named_parameters() if p.requires_grad and p not in optimizer.state]


def moments(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """What the optimizer keeps of each weight."""
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def check_all_updated(left_out: Sequence[str]) -> None:
    """Raises ConfigError if the first update left parameters out: their checkpoints could not be restored."""
    if left_out:
        raise ConfigError(
            f"model: parameter {left_out[0]} got no gradient in the first step ({len(left_out)} in all): "
            "it must take part in the loss, or be frozen with requires_grad_(False)"
        )


def learning_rate(step: int, total_steps: int, config: OptimizerConfig, schedule: ScheduleConfig) -> float:
    """Learning rate of the update that makes `step` steps done into `step + 1`.

    Cosine as in Loshchilov and Hutter, 2017 (arXiv 1608.03983), without restarts, after a linear warm-up.
    """
    if step < schedule.warmup_steps:
        return config.lr * (step + 1) / schedule.warmup_steps
    end = schedule.decay_steps or total_steps
    through = min(1.0, (step - schedule.warmup_steps) / max(1, end - schedule.warmup_steps))
    low = schedule.final_fraction
    shape = {
        "constant": 1.0,
        "linear": 1.0 - (1.0 - low) * through,
        "cosine": low + (1.0 - low) * 0.5 * (1.0 + math.cos(math.pi * through)),
    }
    return config.lr * shape[schedule.kind]


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
