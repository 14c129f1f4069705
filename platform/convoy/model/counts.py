"""Parameters and floating-point operations of a decoder in closed form, without building it."""

from convoy.config.model import TransformerConfig
from convoy.model.families import block_of

SAVED_BYTES = 12
"""Of a parameter between steps, and in a checkpoint: the fp32 weight and the two moments of AdamW."""

TRAINED_BYTES = 16
"""Of a parameter within a step: its fp32 gradient too."""


def checkpoint_bytes(config: TransformerConfig) -> int:
    """Of a checkpoint, but for some counters. torch names a tied head's weight next to the embedding's, so that it is
    saved twice; its moments once."""
    again = 4 * config.vocab_size * config.d_model if config.tied_embeddings else 0
    return SAVED_BYTES * parameter_count(config) + again


def parameter_count(config: TransformerConfig) -> int:
    """Trainable parameters; a tied head counts once, with the token embedding."""
    head = 0 if config.tied_embeddings else config.vocab_size * config.d_model
    blocks = config.n_layers * block_of(config).parameters
    return embedding_parameter_count(config) + blocks + config.vectors_per_norm * config.d_model + head


def embedding_parameter_count(config: TransformerConfig) -> int:
    """Rows that are looked up, not multiplied: the token embedding and, where learned, the positions."""
    positions = config.max_sequence_length if config.positions == "learned" else 0
    return (config.vocab_size + positions) * config.d_model


def flops_per_token(config: TransformerConfig, sequence_length: int) -> float:
    """Operations of forward and backward per trained token: 6 N + 12 L d S.

    N: all parameters but the input embeddings (token and position rows are looked up), the head's
    vocab_size * d_model included even when it is tied to the token embedding.
    12 L d S: the two attention products of L layers at width d over S = sequence_length keys, not
    halved for causality. Recomputation by activation checkpointing is not counted.
    Source: PaLM (Chowdhery et al. 2022), appendix B.
    """
    return 3.0 * forward_flops_per_token(config, sequence_length)


def mfu(tokens_per_second: float, flops_per_token: float, peak_flops: float, ranks: int = 1) -> float:
    """Model FLOPs utilisation: model FLOPs per second over the peak of all ranks together.

    flops_per_token: as `flops_per_token` counts, without recomputation. peak_flops: dense peak of one rank.
    Source: PaLM (Chowdhery et al. 2022), appendix B.
    """
    return tokens_per_second * flops_per_token / ranks / peak_flops


def forward_flops_per_token(config: TransformerConfig, sequence_length: int) -> float:
    """Operations of the forward pass alone per token, 2 N + 4 L d S; terms as in `flops_per_token`."""
    return 2.0 * multiplied_parameters(config) + attention_flops_per_token(config, sequence_length)


def attention_flops_per_token(config: TransformerConfig, sequence_length: int) -> float:
    """Operations of the two attention products in forward, 4 L d S; d is the width of all heads together."""
    return 4.0 * config.n_layers * block_of(config).attention_width * sequence_length


def multiplied_parameters(config: TransformerConfig) -> int:
    """N of `flops_per_token`."""
    shared_head = config.vocab_size * config.d_model if config.tied_embeddings else 0
    return parameter_count(config) - embedding_parameter_count(config) + shared_head
