"""Fit a line with DDP, as anyone would for torchrun, and go on from the newest snapshot after a restart."""

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from convoy import script

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--pause", type=float, default=0.02)
args = parser.parse_args()
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
snapshot, first = Path(script.checkpoints_uri(), "snapshot.pt"), 0
if snapshot.exists():
    saved = torch.load(snapshot)
    model.load_state_dict(saved["model"])
    first = saved["step"]
print(f"rank {rank} of {dist.get_world_size()} goes on from step {first}", flush=True)
for step in range(first + 1, args.steps + 1):
    data = torch.randn(8, 4, generator=torch.Generator().manual_seed(1000 * step + rank))
    loss = (model(data) - data.sum(dim=1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(args.pause)
    script.progress(step)
    if rank == 0 and step % 10 == 0:
        snapshot.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.state_dict(), "step": step}, snapshot.with_suffix(".new"))
        snapshot.with_suffix(".new").replace(snapshot)
print(f"done: loss {loss.item():.6f}", flush=True)
