import json
from pathlib import Path
from typing import Any

import pytest

from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.model.hf_config import check_same_shape, hf_config, hf_format, read_hf_config
from tests.model.models import GPT2, LLAMA, MIXED

SMALL_LLAMA: dict[str, Any] = {
    "vocab_size": 61,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 56,
    "max_position_embeddings": 24,
    "rms_norm_eps": 1e-5,
}


SMALL_GPT2 = {"vocab_size": 61, "n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 24}


def folder_of(tmp_path: Path, tree: dict[str, Any]) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(tree))
    return tmp_path


def shape(config: TransformerConfig) -> dict[str, Any]:
    resolved = {"kv_heads": config.kv_heads, "ff_width": config.ff_width}
    return {**config.model_dump(exclude={"name", "init_std", "n_kv_heads", "d_ff"}), **resolved}


@pytest.mark.parametrize(
    ("family", "keys", "expected"),
    [
        ("GPT2", SMALL_GPT2, GPT2),
        ("Llama", SMALL_LLAMA, LLAMA),
        ("Mistral", {**SMALL_LLAMA, "sliding_window": None}, LLAMA),
    ],
)
def test_what_transformers_writes_is_read_and_every_key_known(
    tmp_path: Path, family: str, keys: dict[str, Any], expected: TransformerConfig
) -> None:
    import transformers

    config = getattr(transformers, f"{family}Config")(**keys)
    config.save_pretrained(tmp_path)
    assert shape(read_hf_config(tmp_path)) == shape(expected)
    generation = dict.fromkeys(transformers.GenerationConfig._get_default_generation_params(), 1)
    read_hf_config(folder_of(tmp_path, {**generation, **config.to_dict()}))


def test_the_published_llama_2_config_is_read_with_its_old_keys(tmp_path: Path) -> None:
    older = {**SMALL_LLAMA, "model_type": "llama", "hidden_act": "silu", "rope_scaling": None, "rope_theta": 5e5}
    assert read_hf_config(folder_of(tmp_path, older)).rope_theta == 5e5


def test_the_published_smollm_config_is_read_with_the_notes_of_the_tool_that_made_it(tmp_path: Path) -> None:
    notes = {"is_llama_config": True, "rope_interleaved": False, "transformers.js_config": {"dtype": "q4"}}
    published = {**SMALL_LLAMA, **notes, "model_type": "llama", "rope_scaling": None, "pretraining_tp": 1}
    assert shape(read_hf_config(folder_of(tmp_path, published))) == shape(LLAMA)


def test_the_published_gpt2_config_is_read_without_the_keys_it_lacks(tmp_path: Path) -> None:
    published = {"model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024}
    config = read_hf_config(folder_of(tmp_path, {**published, "vocab_size": 50257, "activation_function": "gelu_new"}))
    assert (config.d_model, config.tied_embeddings, config.norm_eps) == (768, True, 1e-5)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"model_type": "mamba"}, "model_type mamba: must be gpt2, llama or mistral"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "type = linear in config.json: must be default"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rope_parameters.rope_type = llama3 in config.json: must be d"),
        ({"attention_bias": True}, "attention_bias = true in config.json: must be false"),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding_window = 4096 in config.json: must be null"),
        ({"head_dim": 16}, "head_dim = 16 in config.json: must be 8"),
        ({"hidden_act": "gelu"}, "hidden_act = gelu in config.json: must be silu"),
        ({"num_attention_heads": 5}, "n_heads = 5: must divide d_model, 32"),
        ({"num_attention_heads": 0}, "n_heads = 0: must be at least 1"),
        ({"model_type": "mistral"}, "sliding_window = 4096 in config.json, where the key is absent: must be null"),
        (
            {"model_type": "mistral", "sliding_window": None, "num_key_value_heads": None},
            "num_key_value_heads = null in config.json: must be an integer",
        ),
        ({"quantization_config": {"bits": 8}}, 'quantization_config = {"bits": 8} in config.json: must be null'),
        ({"rope_theta": 0}, "rope_theta = 0: must be more than 0"),
        ({"rope_theta": None}, "rope_theta = null in config.json: must be a number"),
        ({"rope_parameters": {"type": "linear"}}, "type = linear in config.json: must be default"),
        ({"rope_parameters": {"rope_theta": 0}}, "rope_theta = 0: must be more than 0"),
        ({"rope_parameters": {"factor": 2.0}}, "rope_parameters has factor = 2.0 in config.json: must be absent"),
        ({"rope_parameters": [500.0]}, "rope_parameters = [500.0] in config.json: must be an object"),
        (
            {"rope_parameters": {"rope_theta": 500.0}, "rope_scaling": {"rope_type": "default"}},
            "rope_parameters and rope_scaling differ in config.json: remove one of them",
        ),
        (
            {"rope_parameters": {"rope_theta": 500.0}, "rope_theta": 10000.0},
            "rope_theta is 500 and 10000 in config.json: must be one value",
        ),
        ({"hidden_size": "32"}, 'hidden_size = "32" in config.json: must be an integer'),
        ({"rms_norm_eps": True}, "rms_norm_eps = true in config.json: must be a number"),
        ({"tie_word_embeddings": "false"}, 'tie_word_embeddings = "false" in config.json: must be true or false'),
        ({"is_causal": False}, "is_causal = false in config.json: unknown key, which may change what the model comput"),
        ({"two\nlines": "a\nb"}, "two\\nlines = a\\nb in config.json: unknown key"),
    ],
)
def test_what_we_do_not_compute_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], line: str) -> None:
    folder = folder_of(tmp_path, {"model_type": "llama", **SMALL_LLAMA, **changes})
    with pytest.raises(ConfigError) as caught:
        read_hf_config(folder)
    assert line in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_missing_key_a_missing_file_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read config\.json: .*No such file"):
        read_hf_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"cannot read config\.json"):
        read_hf_config(tmp_path)
    with pytest.raises(ConfigError, match=r"no key 'hidden_size' in config\.json"):
        read_hf_config(folder_of(tmp_path, {"model_type": "llama", "vocab_size": 61, "num_hidden_layers": 2}))


@pytest.mark.parametrize("content", [b"[]", b"3", "{}".encode("utf-16"), b"\xef\xbb\xbf{}", b"\xff", b"[" * 100_000])
def test_a_config_that_is_no_json_object_in_utf_8_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ConfigError, match=r"^model\.init_from = [^\n]*config\.json[^\n]*$"):
        read_hf_config(tmp_path)


def test_mistral_has_eight_key_and_value_heads_where_the_file_names_none(tmp_path: Path) -> None:
    from transformers import AutoConfig

    tree = {**SMALL_LLAMA, "hidden_size": 64, "num_attention_heads": 16, "sliding_window": None}
    del tree["num_key_value_heads"]
    for kind, heads in (("mistral", 8), ("llama", 16)):
        folder = folder_of(tmp_path, {"model_type": kind, **tree})
        assert read_hf_config(folder).kv_heads == AutoConfig.from_pretrained(folder).num_key_value_heads == heads


@pytest.mark.parametrize(
    ("config", "changes", "line"),
    [
        (GPT2, {"vocab_size": 70}, "model.vocab_size = 70: must be 61"),
        (GPT2, {"n_layers": 3}, "model.n_layers = 3: must be 2"),
        (GPT2, {"max_sequence_length": 30}, "model.max_sequence_length = 30: must be 24"),
        (GPT2, {"norm_eps": 1e-6}, "model.norm_eps = 1e-06: must be 1e-05"),
        (GPT2, {"tied_embeddings": False}, "model.tied_embeddings = False: must be True"),
        (LLAMA, {"n_kv_heads": 4}, "model.n_kv_heads = 4: must be 2"),
        (LLAMA, {"d_ff": None}, "model.d_ff = 128: must be 56"),
        (LLAMA, {"rope_theta": 5e5}, "model.rope_theta = 500000.0: must be 10000.0"),
        (LLAMA, {"norm": "layernorm"}, "model.norm = layernorm: must be rmsnorm"),
    ],
)
def test_a_folder_of_another_shape_is_refused_with_the_field_and_both_values(
    tmp_path: Path, config: TransformerConfig, changes: dict[str, Any], line: str
) -> None:
    folder = folder_of(tmp_path, hf_config(config, "float32"))
    with pytest.raises(ConfigError) as caught:
        check_same_shape(folder, config.model_copy(update=changes))
    assert str(caught.value) == f"{line}, as in model.init_from = {folder}"


def test_a_longer_context_than_the_folders_is_allowed_with_rotary_positions(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, hf_config(LLAMA, "float32"))
    check_same_shape(folder, LLAMA.model_copy(update={"max_sequence_length": 48}))


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (MIXED, "model.norm = layernorm: Hugging Face's llama needs rmsnorm"),
        (GPT2.model_copy(update={"bias": False}), "model.bias = False: Hugging Face's gpt2 needs True"),
        (GPT2.model_copy(update={"mlp": "swiglu"}), "model.mlp = swiglu: Hugging Face's gpt2 needs gelu"),
        (GPT2.model_copy(update={"n_kv_heads": 2}), "model.n_kv_heads = 2: Hugging Face's gpt2 needs n_heads, 4"),
        (LLAMA.model_copy(update={"bias": True}), "model.bias = True: Hugging Face's llama needs False"),
    ],
)
def test_a_form_without_a_hugging_face_model_names_the_field(config: TransformerConfig, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        hf_format(config)
    assert str(caught.value) == line
