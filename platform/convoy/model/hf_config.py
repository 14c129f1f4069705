"""Between our configuration and the config.json of a Hugging Face GPT-2, LLaMA or Mistral folder. No torch."""

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from convoy.config.errors import ConfigError, one_line
from convoy.config.model import TransformerConfig

Json = dict[str, Any]

_GPT2_FORM = {"norm": "layernorm", "positions": "learned", "mlp": "gelu", "bias": True}
_LLAMA_FORM = {"norm": "rmsnorm", "positions": "rotary", "mlp": "swiglu", "bias": False}

_COMMON = ("vocab_size", "n_layers", "d_model", "n_heads", "kv_heads", "ff_width")
_COMPARED = (*_COMMON, "norm", "norm_eps", "positions", "mlp", "bias", "tied_embeddings")


def family(config: TransformerConfig) -> str:
    """`gpt2` or `llama`: the Hugging Face model_type that computes what `config` does.

    Raises ConfigError naming the field that neither family has.
    """
    name, form = ("gpt2", _GPT2_FORM) if config.positions == "learned" else ("llama", _LLAMA_FORM)
    for field, needed in form.items():
        value = getattr(config, field)
        if value != needed:
            raise ConfigError(f"model.{field} = {value}: Hugging Face's {name} needs {needed}")
    if name == "gpt2" and config.kv_heads != config.n_heads:
        raise ConfigError(f"model.n_kv_heads = {config.kv_heads}: Hugging Face's gpt2 needs n_heads, {config.n_heads}")
    return name


def read_hf_config(folder: Path) -> TransformerConfig:
    """The shape of the model in `folder`. Raises ConfigError when it is none that we compute."""
    path = folder / "config.json"
    try:
        tree: Json = json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise ConfigError(f"model.init_from = {folder}: cannot read {path.name}: {error}") from None
    kind = tree.get("model_type")
    if kind not in ("gpt2", "llama", "mistral"):
        raise ConfigError(f"model.init_from = {folder}: model_type {kind}: must be gpt2, llama or mistral")
    try:
        fields = _from_gpt2(tree, folder) if kind == "gpt2" else _from_llama(tree, folder)
        return TransformerConfig.model_validate({"name": folder.name, **fields})
    except KeyError as error:
        raise ConfigError(f"model.init_from = {folder}: no key {error} in {path.name}") from None
    except ValidationError as error:
        raise ConfigError(f"model.init_from = {folder}: {one_line(error, TransformerConfig)}") from None


def check_same_shape(folder: Path, config: TransformerConfig) -> None:
    """Raise ConfigError, naming the field and both values, unless `config` is the model in `folder`."""
    found = read_hf_config(folder)
    positional = "max_sequence_length" if config.positions == "learned" else "rope_theta"
    for field in (*_COMPARED, positional):
        ours, theirs = getattr(config, field), getattr(found, field)
        if ours != theirs:
            raise ConfigError(f"model.{_key(field)} = {ours}: must be {theirs}, as in model.init_from = {folder}")


def hf_config(config: TransformerConfig, dtype: str, eos_id: int | None = None) -> Json:
    """The config.json that `transformers` reads; dtype is a torch dtype's name such as `float32`."""
    form = _to_gpt2(config) if family(config) == "gpt2" else _to_llama(config)
    # torch_dtype is what transformers before 4.56 reads.
    return {**form, "dtype": dtype, "torch_dtype": dtype, "bos_token_id": eos_id, "eos_token_id": eos_id}


def _key(field: str) -> str:
    return {"kv_heads": "n_kv_heads", "ff_width": "d_ff"}.get(field, field)


def _from_gpt2(tree: Json, folder: Path) -> Json:
    _require(tree, folder, "activation_function", "gelu_new", ("gelu_new", "gelu_pytorch_tanh"))
    _require(tree, folder, "scale_attn_weights", True, (True,))
    _require(tree, folder, "scale_attn_by_inverse_layer_idx", False, (False,))
    return {
        **_GPT2_FORM,
        "vocab_size": tree["vocab_size"],
        "n_layers": tree["n_layer"],
        "d_model": tree["n_embd"],
        "n_heads": tree["n_head"],
        "d_ff": tree.get("n_inner"),
        "max_sequence_length": tree["n_positions"],
        "norm_eps": tree.get("layer_norm_epsilon", 1e-5),
        "tied_embeddings": tree.get("tie_word_embeddings", True),
    }


def _from_llama(tree: Json, folder: Path) -> Json:
    rope = tree.get("rope_parameters") or {}
    scaling = tree.get("rope_scaling") or {}
    kind = rope.get("rope_type") or scaling.get("rope_type") or scaling.get("type") or "default"
    _require({"rope_type": kind}, folder, "rope_type", "default", ("default",))
    _require(tree, folder, "hidden_act", "silu", ("silu",))
    _require(tree, folder, "attention_bias", False, (False,))
    _require(tree, folder, "mlp_bias", False, (False,))
    _require(tree, folder, "sliding_window", None, (None,))
    head_width = tree["hidden_size"] // tree["num_attention_heads"]
    _require(tree, folder, "head_dim", head_width, (head_width, None))
    return {
        **_LLAMA_FORM,
        "vocab_size": tree["vocab_size"],
        "n_layers": tree["num_hidden_layers"],
        "d_model": tree["hidden_size"],
        "n_heads": tree["num_attention_heads"],
        "n_kv_heads": tree.get("num_key_value_heads"),
        "d_ff": tree["intermediate_size"],
        "max_sequence_length": tree["max_position_embeddings"],
        "norm_eps": tree.get("rms_norm_eps", 1e-6),
        "rope_theta": rope.get("rope_theta") or tree.get("rope_theta") or 10000.0,
        "tied_embeddings": tree.get("tie_word_embeddings", False),
    }


def _require(tree: Json, folder: Path, key: str, default: Any, allowed: tuple[Any, ...]) -> None:
    value = tree.get(key, default)
    if value not in allowed:
        raise ConfigError(f"model.init_from = {folder}: {key} = {value} in config.json: must be {allowed[0]}")


def _to_gpt2(config: TransformerConfig) -> Json:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": config.vocab_size,
        "n_layer": config.n_layers,
        "n_embd": config.d_model,
        "n_head": config.n_heads,
        "n_inner": config.d_ff,
        "n_positions": config.max_sequence_length,
        "layer_norm_epsilon": config.norm_eps,
        "activation_function": "gelu_new",
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tied_embeddings,
        "embd_pdrop": config.dropout,
        "resid_pdrop": config.dropout,
        "attn_pdrop": 0.0,
    }


def _to_llama(config: TransformerConfig) -> Json:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.n_layers,
        "hidden_size": config.d_model,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "intermediate_size": config.ff_width,
        "max_position_embeddings": config.max_sequence_length,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        # transformers 5 reads rope_parameters, before it rope_theta.
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "initializer_range": config.init_std,
        "tie_word_embeddings": config.tied_embeddings,
    }
