"""What `torchrun_recovery.py` has torchrun start: the default model under FSDP2, as one writes it without Convoy.

python torchrun_worker.py FOLDER STEPS SAVE_EVERY TIMEOUT_SECONDS

Saves with torch.distributed.checkpoint, goes on from the newest whole save, and writes a line for each step.
"""

import datetime
import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

from convoy.config.run import RunConfig
from convoy.model.init import initialise
from convoy.model.transformer import Transformer

SEQUENCES = 3
"""Of each rank in a step: the default job's eight over three ranks, evened out."""


def main(folder: Path, steps: int, save_every: int, timeout_seconds: float) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=timeout_seconds))
    config = RunConfig()
    model = Transformer(config.model, config.train.loss_chunk_tokens)
    initialise(model, seed=0)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    done = restore(folder, model, optimizer)
    rank = dist.get_rank()
    tell(folder, rank, step=done, kind="ready")
    for step in range(done + 1, steps + 1):
        generator = torch.Generator().manual_seed(step * 1000 + rank)
        shape = (SEQUENCES, config.data.sequence_length + 1)
        tokens_bs = torch.randint(config.model.vocab_size, shape, generator=generator)
        loss = model(tokens_bs[:, :-1], tokens_bs[:, 1:]) / tokens_bs[:, 1:].numel()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        tell(folder, rank, step=step, kind="step")
        if step % save_every == 0:
            save(folder, model, optimizer, step)
    dist.destroy_process_group()


def save(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": state}, checkpoint_id=str(folder / f"step-{step:06d}"))
    dist.barrier()
    if dist.get_rank() == 0:
        (folder / f"step-{step:06d}" / "whole").touch()


def restore(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Steps done."""
    whole = sorted(folder.glob("step-*/whole"))
    if not whole:
        return 0
    weights, state = get_state_dict(model, optimizer)
    dcp.load({"model": weights, "optimizer": state}, checkpoint_id=str(whole[-1].parent))
    set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
    return int(whole[-1].parent.name.removeprefix("step-"))


def tell(folder: Path, rank: int, **facts: object) -> None:
    line = json.dumps({"t": time.time(), "rank": rank, "pid": os.getpid(), **facts}) + "\n"
    with open(folder / f"rank-{rank}.jsonl", "a") as log:
        log.write(line)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
