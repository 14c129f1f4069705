"""A model whose training state has a wanted size, and real steps of it: what the savers are measured beside."""

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from convoy.checkpoint.state.tensors import tensors_of
from convoy.config.model import TransformerConfig
from convoy.model.init import initialise
from convoy.model.transformer import Transformer

BYTES_PER_PARAMETER = 12
"""fp32 weight and the two moments of AdamW."""

LAYERS = 8
HEADS = 4


class Training:
    """A decoder under FSDP2 with fused AdamW, whose state has about `state_bytes` over all ranks."""

    def __init__(self, state_bytes: int, tokens: int) -> None:
        """tokens: of a rank's batch; more of them make a step longer, and change nothing else."""
        config = model_config(state_bytes, tokens)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        with torch.device("meta"):
            self.model: nn.Module = Transformer(config)
        for block in self.model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.model.to_empty(device="cpu")
        initialise(self.model, 0)  # type: ignore[arg-type]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        generator = torch.Generator().manual_seed(dist.get_rank())
        self.tokens = torch.randint(config.vocab_size, (1, tokens + 1), generator=generator)
        self.step()  # makes the moments
        self.state: dict[str, Any] = tensors_of(self.model, self.optimizer)

    def step(self, join: Any = None) -> float:
        """Seconds of one optimizer step. join: called before the update, for savers that no hook of ours joins."""
        began = time.perf_counter()
        loss = self.model(self.tokens[:, :-1], self.tokens[:, 1:]) / self.tokens.numel()
        loss.backward()
        if join is not None:
            join()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - began


def model_config(state_bytes: int, tokens: int) -> TransformerConfig:
    """Eight square blocks, and a vocabulary that fills up to the wanted number of parameters."""
    parameters = -(-state_bytes // BYTES_PER_PARAMETER)
    # Of a block: 12 d^2 weights and a few d; a tenth of all is left for the embedding.
    width = max(16, int((0.9 * parameters / (12 * LAYERS)) ** 0.5) // 16 * 16)
    blocks = LAYERS * (12 * width * width + 13 * width) + (tokens + 2) * width
    rows = max(64, -(-(parameters - blocks) // (2 * width)))
    return TransformerConfig(
        n_layers=LAYERS,
        n_heads=HEADS,
        d_model=width,
        vocab_size=rows,
        tied_embeddings=False,  # safetensors refuses tensors that share memory
        max_sequence_length=max(2, tokens),
    )


def flat(state: dict[str, Any], prefix: str = "") -> dict[str, torch.Tensor]:
    """Tensors by their path."""
    found: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        elif isinstance(value, torch.Tensor):
            found[f"{prefix}{key}"] = value
    return found


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's part of it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def empty_like(state: dict[str, Any]) -> dict[str, Any]:
    """The same structure with memory of its own, written to once so that no load pays for page faults."""
    made: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, dict):
            made[key] = empty_like(value)
        else:
            made[key] = torch.zeros_like(value) if isinstance(value, torch.Tensor) else value
    return made


def local_bytes(state: dict[str, Any]) -> int:
    return sum(local(t).nbytes for t in flat(state).values())


def differs(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of tensors that are not bit for bit the same on this rank."""
    theirs = flat(other)
    return [n for n, t in flat(one).items() if not torch.equal(_bits(local(t)), _bits(local(theirs[n])))]


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def connect(rank: int, ranks: int, port: int, threads: int) -> None:
    """Join the process group of this benchmark."""
    torch.set_num_threads(threads)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(ranks)}
    store = dist.TCPStore("127.0.0.1", port, ranks, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
