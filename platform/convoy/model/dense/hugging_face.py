"""GPT-2, LLaMA and Mistral, as Hugging Face has them."""

import re
from dataclasses import replace
from typing import Any

from convoy.config.model import TransformerConfig
from convoy.model.hf_format import SAME_FOR_ALL, FieldKey, FixedKey, HfFormat

_GPT2_KEYS = {
    "vocab_size": FieldKey("vocab_size", int),
    "n_layers": FieldKey("n_layer", int),
    "d_model": FieldKey("n_embd", int),
    "n_heads": FieldKey("n_head", int),
    "d_ff": FieldKey("n_inner", int, None, nullable=True),
    "max_sequence_length": FieldKey("n_positions", int),
    "norm_eps": FieldKey("layer_norm_epsilon", float, 1e-5),
    "tied_embeddings": FieldKey("tie_word_embeddings", bool, True),
}

_LLAMA_KEYS = {
    "vocab_size": FieldKey("vocab_size", int),
    "n_layers": FieldKey("num_hidden_layers", int),
    "d_model": FieldKey("hidden_size", int),
    "n_heads": FieldKey("num_attention_heads", int),
    "n_kv_heads": FieldKey("num_key_value_heads", int, None, nullable=True),
    "d_ff": FieldKey("intermediate_size", int),
    "max_sequence_length": FieldKey("max_position_embeddings", int),
    "norm_eps": FieldKey("rms_norm_eps", float, 1e-6),
    "rope_theta": FieldKey("rope_theta", float, 10000.0),
    "tied_embeddings": FieldKey("tie_word_embeddings", bool, False),
}

# Not null: `transformers` 5 refuses that with a TypeError, where 4 took it for as many as there are query heads.
_MISTRAL_KEYS = {**_LLAMA_KEYS, "n_kv_heads": FieldKey("num_key_value_heads", int, 8)}

_GPT2_FIXED = {
    **SAME_FOR_ALL,
    "activation_function": FixedKey(("gelu_new", "gelu_pytorch_tanh"), "gelu_new"),
    "scale_attn_weights": FixedKey((True,), True),
    "scale_attn_by_inverse_layer_idx": FixedKey((False,), False),
}

_LLAMA_FIXED = {
    **SAME_FOR_ALL,
    "hidden_act": FixedKey(("silu", "swish"), "silu"),
    "attention_bias": FixedKey((False,), False),
    "mlp_bias": FixedKey((False,), False),
    "rope_interleaved": FixedKey((False,), False),
    "sliding_window": FixedKey((None,)),
}

_MISTRAL_FIXED = {**_LLAMA_FIXED, "sliding_window": FixedKey((None,), 4096)}


def _gpt2_extra_keys(config: TransformerConfig) -> dict[str, Any]:
    return {
        "n_inner": config.d_ff,
        "activation_function": "gelu_new",
        "initializer_range": config.init_std,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": 0.0,
    }


def _llama_extra_keys(config: TransformerConfig) -> dict[str, Any]:
    return {
        "head_dim": config.head_width,
        # transformers 5 reads rope_parameters, before it rope_theta.
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": config.init_std,
    }


GPT2 = HfFormat(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    form={"norm": "layernorm", "positions": "learned", "mlp": "gelu", "bias": True},
    keys=_GPT2_KEYS,
    fixed=_GPT2_FIXED,
    extra_keys=_gpt2_extra_keys,
    prefix="transformer.",
    ends={"embed.token": "wte", "embed.position": "wpe", "head.norm": "ln_f"},
    layers="h",
    block={
        "attention.norm": ("ln_1",),
        "attention.qkv": ("attn.c_attn",),
        "attention.out": ("attn.c_proj",),
        "mlp.norm": ("ln_2",),
        "mlp.up": ("mlp.c_fc",),
        "mlp.down": ("mlp.c_proj",),
    },
    transposed=True,
    buffers=re.compile(r"h\.\d+\.attn\.(bias|masked_bias)"),
)

LLAMA = HfFormat(
    model_type="llama",
    architecture="LlamaForCausalLM",
    form={"norm": "rmsnorm", "positions": "rotary", "mlp": "swiglu", "bias": False},
    keys=_LLAMA_KEYS,
    fixed=_LLAMA_FIXED,
    extra_keys=_llama_extra_keys,
    prefix="model.",
    ends={"embed.token": "embed_tokens", "head.norm": "norm"},
    layers="layers",
    block={
        "attention.norm": ("input_layernorm",),
        "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "attention.out": ("self_attn.o_proj",),
        "mlp.norm": ("post_attention_layernorm",),
        "mlp.gate": ("mlp.gate_proj",),
        "mlp.up": ("mlp.up_proj",),
        "mlp.down": ("mlp.down_proj",),
    },
    transposed=False,
    buffers=re.compile(r"layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
)

MISTRAL = replace(
    LLAMA, model_type="mistral", architecture="MistralForCausalLM", keys=_MISTRAL_KEYS, fixed=_MISTRAL_FIXED
)
