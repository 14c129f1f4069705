"""A Hugging Face model type: the keys of its config.json and the names of its tensors. No torch.

Source of the keys: the configuration classes of `transformers` 4.46 to 5.23. A key that is in none of these tables is
refused, because nobody has looked at what it does to the logits.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

REQUIRED = object()

ROPE_DICTS = ("rope_parameters", "rope_scaling")
"""`transformers` 5 writes the first one, and before it the second one with `rope_theta` next to it."""

_DESCRIPTION = """
    model_type architectures transformers_version name_or_path _name_or_path _commit_hash _from_model_config _auto_class
    dtype torch_dtype use_bfloat16 tf_legacy_loss torchscript fp16 bf16
    tokenizer_class prefix bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id
    model_max_length max_sequence_length n_ctx task_specific_params finetuning_task
    id2label label2id num_labels _num_labels problem_type
    is_llama_config transformers.js_config unsloth_fixed unsloth_version
"""

_TRAINING = """
    initializer_range gradient_checkpointing dropout attention_dropout attn_pdrop embd_pdrop resid_pdrop
    summary_type summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout
"""

_HOW_IT_RUNS = """
    use_cache cache_implementation output_past output_hidden_states output_attentions output_scores return_dict
    return_dict_in_generate tie_last_hidden_states is_decoder chunk_size_feed_forward pretraining_tp
    reorder_and_upcast_attn attn_implementation _attn_implementation _attn_implementation_autoset
    _attn_implementation_internal
"""

_GENERATION = """
    assistant_confidence_threshold assistant_lookbehind bad_words_ids begin_suppress_tokens diversity_penalty do_sample
    early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty epsilon_cutoff eta_cutoff
    exponential_decay_length_penalty forced_bos_token_id forced_eos_token_id length_penalty max_length min_length
    no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams
    num_return_sequences remove_invalid_values repetition_penalty suppress_tokens target_lookbehind temperature top_k
    top_p typical_p
"""

HARMLESS = frozenset(f"{_DESCRIPTION} {_TRAINING} {_HOW_IT_RUNS} {_GENERATION}".split())
"""Keys that leave the logits as they are, whatever their value."""


@dataclass(frozen=True)
class FieldKey:
    """A key whose value becomes a field of our configuration."""

    name: str
    kind: type
    default: Any = REQUIRED
    """What `transformers` takes where the key is absent."""
    nullable: bool = False


@dataclass(frozen=True)
class FixedKey:
    """A key that must have one of the values with which our model computes the same."""

    allowed: tuple[Any, ...]
    default: Any = None
    """What `transformers` takes where the key is absent."""


@dataclass(frozen=True)
class HfFormat:
    """A model_type that computes what a family does."""

    model_type: str
    architecture: str
    form: Mapping[str, Any]
    """Our fields that have one value in all its models."""
    keys: Mapping[str, FieldKey]
    """The keys that become our fields, by field."""
    fixed: Mapping[str, FixedKey]
    extra_keys: Callable[[Any], dict[str, Any]]
    """Keys that are written besides those, for a configuration."""
    prefix: str
    """Of tensor names; files of a bare model, without its head, leave it out."""
    ends: Mapping[str, str]
    """Tensors of the embedding and of the final norm, by our modules."""
    layers: str
    """What comes before the number of a layer."""
    block: Mapping[str, tuple[str, ...]]
    """Tensors of a block, by our modules. Where there are several, their rows stand on top of each other in ours."""
    transposed: bool
    """Its layers keep (in, out), as GPT-2's Conv1D, where a linear layer keeps (out, in)."""
    buffers: re.Pattern[str]
    """Constants that older versions of `transformers` saved, and that every version computes itself."""


HEAD_WIDTH = FieldKey("head_dim", int, None, nullable=True)
"""Must be the width of the model divided by its heads."""


SAME_FOR_ALL = {
    "add_cross_attention": FixedKey((False,), False),
    "cross_attention_hidden_size": FixedKey((None,)),
    "is_encoder_decoder": FixedKey((False,), False),
    "partial_rotary_factor": FixedKey((1.0,), 1.0),
    "pruned_heads": FixedKey(({}, None)),
    "quantization_config": FixedKey((None,)),
    "tie_encoder_decoder": FixedKey((False,), False),
}
