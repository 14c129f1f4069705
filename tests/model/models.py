"""Tiny models of every form, and small helpers that several test files use."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from convoy.config.model import TransformerConfig
from convoy.model.init import initialise_weights
from convoy.model.transformer import Transformer

GPT2 = TransformerConfig(
    name="gpt2-like", vocab_size=61, n_layers=2, d_model=32, n_heads=4, max_sequence_length=24, init_std=0.2
)
LLAMA = TransformerConfig(
    name="llama-like",
    vocab_size=61,
    n_layers=2,
    d_model=32,
    n_heads=4,
    n_kv_heads=2,
    d_ff=56,
    max_sequence_length=24,
    norm="rmsnorm",
    positions="rotary",
    mlp="swiglu",
    bias=False,
    tied_embeddings=False,
    init_std=0.2,
)
MIXED = LLAMA.model_copy(update={"name": "mixed", "norm": "layernorm", "bias": True, "tied_embeddings": True})
FORMS = {config.name: config for config in (GPT2, LLAMA, MIXED)}


def ready(config: TransformerConfig, seed: int = 0, loss_chunk_tokens: int = 0) -> Transformer:
    """A model on CPU with weights, for evaluation or training."""
    with torch.device("meta"):
        model = Transformer(config, loss_chunk_tokens)
    model.to_empty(device="cpu")
    initialise_weights(model, seed)
    return model


def sharded(config: TransformerConfig, seed: int = 0, bf16: bool = False, loss_chunk_tokens: int = 0) -> Transformer:
    """The same model over all ranks of the default group: each block on its own, embedding and head together."""
    with torch.device("meta"):
        model = Transformer(config, loss_chunk_tokens)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    kwargs = {"mp_policy": policy} if bf16 else {}
    for block in model.blocks:
        fully_shard(block, **kwargs)
    fully_shard([model.embed, model.head], **kwargs)
    fully_shard(model, **kwargs)
    model.to_empty(device="cpu")
    initialise_weights(model, seed)
    return model


def random_tokens(config: TransformerConfig, batch: int = 2, length: int = 16, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(config.vocab_size, (batch, length), generator=generator)


def theirs(folder: Path, **options: Any) -> Any:
    """The model of a Hugging Face folder, by `transformers`, which takes half a second to import."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, **options)
