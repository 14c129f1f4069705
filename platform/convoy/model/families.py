"""Model families: decoders that differ in their blocks, each described in a folder of its own. Imports no torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from convoy.config.model import TransformerConfig
from convoy.model.block import Block
from convoy.model.dense.block import dense_block
from convoy.model.dense.hugging_face import GPT2, LLAMA, MISTRAL
from convoy.model.hf_format import HfFormat

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class BlockFamily:
    """What the embedding, the head and everything around them need to know of a decoder's blocks."""

    name: str
    config: type[TransformerConfig]
    """Its class, which no other family has. A class that users may choose is also one of `ModelConfig` in
    `config/model.py`."""
    shape: Callable[[Any], Block]
    """The block of a configuration, as data."""
    build: "Callable[[Any, bool], nn.Module]"
    """The same block as a module, called with the configuration and whether attention is fused. Its forward takes
    hidden_bsd, positions and mask_b1ss."""
    formats: tuple[HfFormat, ...] = ()
    """Hugging Face models that compute the same. Where several have the same form, the first one is written."""


def _build_dense_block(config: TransformerConfig, fused_attention: bool) -> "nn.Module":
    from convoy.model.dense.modules import DenseBlock

    return DenseBlock(config, fused_attention)


FAMILIES = (BlockFamily("dense", TransformerConfig, dense_block, _build_dense_block, (GPT2, LLAMA, MISTRAL)),)


def family_of(config: TransformerConfig) -> BlockFamily:
    """Raises LookupError for a configuration of no family."""
    for family in FAMILIES:
        if type(config) is family.config:
            return family
    classes = ", ".join(family.config.__name__ for family in FAMILIES)
    raise LookupError(f"{type(config).__name__} is the configuration of no model family: must be one of {classes}")


def hf_formats() -> dict[str, tuple[BlockFamily, HfFormat]]:
    """By model_type, every Hugging Face model that a family computes."""
    return {chosen.model_type: (family, chosen) for family in FAMILIES for chosen in family.formats}


def block_of(config: TransformerConfig) -> Block:
    """The shape of each block of the configured model."""
    return family_of(config).shape(config)
