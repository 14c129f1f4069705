import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor

from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.model.generate import generate
from convoy.model.hf import read_hf_weights, write_hf
from convoy.model.hf_config import hf_config, read_hf_config
from convoy.model.hf_tensors import HEAD, correspondences
from convoy.model.init import load_full_weights, parameter_names
from convoy.model.transformer import Transformer
from tests.campaign import examples
from tests.model.models import GPT2, LLAMA, MIXED, random_tokens, ready, theirs

pytestmark = pytest.mark.campaign

UNTIED_GPT2 = GPT2.model_copy(update={"name": "gpt2-untied", "tied_embeddings": False, "d_ff": 40})
TIED_LLAMA = LLAMA.model_copy(update={"name": "llama-tied", "tied_embeddings": True, "rope_theta": 500.0})
MULTI_HEAD_LLAMA = LLAMA.model_copy(update={"name": "llama-mha", "n_kv_heads": None})
CONFIGS = (GPT2, UNTIED_GPT2, LLAMA, TIED_LLAMA, MULTI_HEAD_LLAMA)
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)


def with_random_weights(model: Any) -> Any:
    """Norms and biases too."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.eval().parameters():
            parameter.normal_(0.0, 0.3)
    return model


def theirs_of(folder: Path) -> Any:
    """A model of `transformers` with random weights, of the shape in a folder's config.json."""
    from transformers import AutoConfig, AutoModelForCausalLM

    return with_random_weights(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)))


def loaded(folder: Path, config: TransformerConfig) -> Transformer:
    model = ready(config, seed=99)
    load_full_weights(model, read_hf_weights(folder, config))
    return model


def difference(first: Tensor, second: Tensor) -> float:
    return float((first - second).detach().abs().max())


def state(model: Transformer) -> dict[str, Tensor]:
    return {name: parameter.detach() for name, parameter in parameter_names(model)}


@every_config
def test_logits_from_a_hugging_face_folder_equal_those_of_transformers(
    config: TransformerConfig, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(hf_config(config, "float32")))
    model, tokens = theirs_of(tmp_path), random_tokens(config, length=24)
    model.save_pretrained(tmp_path)
    expected = model(tokens).logits
    assert expected.abs().max() > 1.0
    assert difference(loaded(tmp_path, config)(tokens), expected) <= 1e-4


@every_config
def test_what_we_write_we_read_back_and_transformers_computes_and_generates_the_same(
    config: TransformerConfig, tmp_path: Path
) -> None:
    ours = with_random_weights(ready(config))
    write_hf(tmp_path, config, state(ours))

    read = dict(read_hf_weights(tmp_path, read_hf_config(tmp_path)))
    assert read.keys() == state(ours).keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in state(ours).items())
    model, report = theirs(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = random_tokens(config, length=24)
    assert difference(model(tokens).logits, ours(tokens)) <= 1e-4
    generated = model.generate(torch.tensor([[5, 7, 11]]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert generated[0, 3:].tolist() == generate(ours, [5, 7, 11], 12, temperature=0.0, seed=0)


def test_a_tied_head_in_the_state_is_not_written_twice(tmp_path: Path) -> None:
    write_hf(tmp_path, GPT2, ready(GPT2).state_dict())
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")


def test_large_models_are_written_to_several_files_that_transformers_and_we_read(tmp_path: Path) -> None:
    ours = with_random_weights(ready(LLAMA))
    write_hf(tmp_path, LLAMA, state(ours), max_file_bytes=20_000)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    tokens = random_tokens(LLAMA)
    assert difference(theirs(tmp_path)(tokens).logits, ours(tokens)) <= 1e-4
    assert torch.equal(loaded(tmp_path, LLAMA)(tokens), ours(tokens))


def test_bf16_weights_stay_bf16_in_the_folder(tmp_path: Path) -> None:
    written = {name: tensor.bfloat16() for name, tensor in state(with_random_weights(ready(GPT2))).items()}
    write_hf(tmp_path, GPT2, written)
    assert theirs(tmp_path, dtype="auto").dtype == torch.bfloat16
    assert all(tensor.dtype == torch.bfloat16 for _, tensor in read_hf_weights(tmp_path, GPT2))


def test_a_folder_of_a_bare_model_with_masks_is_read(tmp_path: Path) -> None:
    """The first published GPT-2 weights have no `transformer.` prefix and hold attention masks."""
    ours = with_random_weights(ready(GPT2))
    write_hf(tmp_path, GPT2, state(ours))
    named = load_file(tmp_path / "model.safetensors")
    bare = {name.removeprefix("transformer."): tensor for name, tensor in named.items()}
    save_file({**bare, "h.0.attn.bias": torch.ones(1, 1, 24, 24)}, tmp_path / "model.safetensors")
    tokens = random_tokens(GPT2)
    assert torch.equal(loaded(tmp_path, GPT2)(tokens), ours(tokens))


def test_a_missing_tensor_a_missing_file_and_another_shape_are_named(tmp_path: Path) -> None:
    write_hf(tmp_path, GPT2, state(ready(GPT2)))
    with pytest.raises(ConfigError, match=r"model\.n_layers = 3: must be 2"):
        dict(read_hf_weights(tmp_path, GPT2.model_copy(update={"n_layers": 3})))
    named = load_file(tmp_path / "model.safetensors")
    del named["transformer.h.1.mlp.c_fc.bias"]
    save_file(named, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match=r"no tensor transformer\.h\.1\.mlp\.c_fc\.bias"):
        dict(read_hf_weights(tmp_path, GPT2))
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ConfigError, match=r"cannot read model\.safetensors"):
        dict(read_hf_weights(tmp_path, GPT2))
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"cannot read model\.safetensors"):
        dict(read_hf_weights(tmp_path, GPT2))


def test_a_form_that_hugging_face_lacks_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.norm = layernorm"):
        write_hf(tmp_path / "out", MIXED, state(ready(MIXED)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("eos", ["<|endoftext|>", None])
def test_the_tokenizer_and_the_end_of_document_if_any_reach_transformers(eos: str | None, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(["def f(x): return x"], BpeTrainer(vocab_size=40, special_tokens=["<|endoftext|>"]))
    tokenizer.save(str(tmp_path / "trained.json"))
    eos_id = eos and tokenizer.token_to_id(eos)
    write_hf(tmp_path / "out", GPT2, state(ready(GPT2)), tmp_path / "trained.json", eos_id)
    found = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert found("return f").input_ids == tokenizer.encode("return f").ids
    assert (found.eos_token, found.model_max_length) == (eos, GPT2.max_sequence_length)
    assert theirs(tmp_path / "out").generation_config.eos_token_id == eos_id


TINY: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 24, "vocab_size": 31},
    "llama": {
        "num_hidden_layers": 1,
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": 24,
        "vocab_size": 31,
    },
}
TINY["mistral"] = TINY["llama"] | {"num_key_value_heads": 2}

ROPES = [
    None,
    {},
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "default"},
    {"type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 4.0, "rope_theta": 500.0},
]

OPTIONS: dict[str, list[Any]] = {
    "tie_word_embeddings": [True, False],
    "layer_norm_epsilon": [0.5],
    "n_inner": [20, None],
    "hidden_size": [8],
    "activation_function": ["gelu", "gelu_pytorch_tanh"],
    "scale_attn_weights": [False],
    "scale_attn_by_inverse_layer_idx": [True],
    "reorder_and_upcast_attn": [True],
    "attn_pdrop": [0.3],
    "n_ctx": [4],
}
LLAMA_OPTIONS: dict[str, list[Any]] = {
    "tie_word_embeddings": [True, False],
    "rms_norm_eps": [0.5],
    "num_key_value_heads": [1, 2, None],
    "head_dim": [4, 8, None],
    "hidden_act": ["gelu", "swish"],
    "attention_bias": [True, False],
    "sliding_window": [None, None, None, 4],
    "rope_theta": [10000, 500.0],
    "rope_parameters": ROPES,
    "rope_scaling": ROPES,
    "is_causal": [False],
    "attention_dropout": [0.3],
    "pretraining_tp": [2],
    "max_length": [20],
}


@st.composite
def hugging_face_configs(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(sorted(TINY)))
    options = OPTIONS if kind == "gpt2" else LLAMA_OPTIONS
    chosen = draw(st.lists(st.sampled_from(sorted(options)), max_size=3, unique=True))
    full = {"sliding_window": None} if kind == "mistral" and draw(st.integers(0, 3)) else {}
    return {"model_type": kind, **TINY[kind], **full, **{key: draw(st.sampled_from(options[key])) for key in chosen}}


@pytest.mark.processes
@given(tree=hugging_face_configs())
@examples(15)
def test_a_config_is_refused_or_gives_the_logits_of_transformers(
    tree: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("hf")
    (folder / "config.json").write_text(json.dumps(tree))
    try:
        config = read_hf_config(folder)
    except ConfigError:
        return
    model = theirs_of(folder)
    held = {name: tensor for name, tensor in model.state_dict().items() if tree_unties(tree) or name != HEAD}
    save_file(held, folder / "model.safetensors")
    tokens = random_tokens(config, length=24)
    assert difference(loaded(folder, config)(tokens), model(tokens).logits) <= 1e-4


def tree_unties(tree: dict[str, Any]) -> bool:
    return not tree.get("tie_word_embeddings", tree["model_type"] == "gpt2")


def told(folder: Path, config: TransformerConfig) -> str:
    """The refusal of a folder's weights, in one line, after what all have in common."""
    with pytest.raises(ConfigError) as caught:
        list(read_hf_weights(folder, config))
    line = str(caught.value)
    assert "\n" not in line
    return line.removeprefix(f"model.init_from = {folder}: ")


@pytest.fixture
def llama_folder(tmp_path: Path) -> Path:
    write_hf(tmp_path, LLAMA, state(ready(LLAMA)))
    return tmp_path


def change(folder: Path, more: Mapping[str, Tensor], without: str = "") -> None:
    held = {name: tensor for name, tensor in load_file(folder / "model.safetensors").items() if name != without}
    save_file({**held, **more}, folder / "model.safetensors")


Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("tensors", "line"),
    [
        (
            {Q: torch.ones(32, 32, dtype=torch.int8)},
            f"tensor {Q} in model.safetensors is of type I8: must be one of F64",
        ),
        (
            {Q: torch.ones(32, 32).to(torch.float8_e4m3fn)},
            f"tensor {Q} in model.safetensors is of type F8_E4M3: must be",
        ),
        ({Q: torch.ones(16, 32)}, f"tensor {Q} in model.safetensors has shape (16, 32): must be (32, 32)"),
        (
            {Q: torch.full((32, 32), torch.nan)},
            f"tensor {Q} in model.safetensors holds values that are NaN or infinite",
        ),
        ({Q: torch.full((32, 32), -torch.inf)}, f"tensor {Q} in model.safetensors holds values that are NaN or infin"),
        (
            {Q.replace("weight", "bias"): torch.ones(32)},
            f"tensor {Q.replace('weight', 'bias')} in model.safetensors is n",
        ),
        (
            {"model.layers.2.mlp.up_proj.weight": torch.ones(56, 32)},
            "tensor model.layers.2.mlp.up_proj.weight in model.",
        ),
        ({Q.removeprefix("model."): torch.ones(32, 32)}, f"tensor {Q} appears twice, as "),
    ],
)
def test_a_tensor_that_is_not_a_weight_of_the_model_is_named(
    llama_folder: Path, tensors: dict[str, Tensor], line: str
) -> None:
    change(llama_folder, tensors)
    assert told(llama_folder, LLAMA).startswith(line)


def test_constants_that_old_versions_saved_are_no_weights(llama_folder: Path) -> None:
    change(llama_folder, {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    assert len(list(read_hf_weights(llama_folder, LLAMA))) == len(correspondences(LLAMA))


def test_a_head_in_the_file_of_a_tied_model_must_be_the_embedding(tmp_path: Path) -> None:
    weights = state(ready(GPT2))
    write_hf(tmp_path, GPT2, weights)
    change(tmp_path, {HEAD: weights["embed.token.weight"].clone()})
    assert len(list(read_hf_weights(tmp_path, GPT2))) == len(correspondences(GPT2))
    change(tmp_path, {HEAD: weights["embed.token.weight"] + 1e-3})
    assert told(tmp_path, GPT2).startswith(f"{HEAD} differs from the embedding: tie_word_embeddings")


def test_an_index_that_does_not_describe_its_files_is_refused(tmp_path: Path) -> None:
    write_hf(tmp_path, LLAMA, state(ready(LLAMA)), max_file_bytes=20_000)
    path = tmp_path / "model.safetensors.index.json"
    tree = json.loads(path.read_text())
    files = sorted(set(tree["weight_map"].values()))
    for content, line in (
        (b"{", f"cannot read {path.name}: "),
        (b"[]", f"{path.name} holds []: must be a JSON object"),
        (b'{"weight_map": ["a"]}', f"weight_map in {path.name}: must give the file of each tensor"),
        (b'{"weight_map": {"a": 3}}', f"weight_map in {path.name}: must give the file of each tensor"),
        (b'{"weight_map": {"a": "\\u0000"}}', f"weight_map in {path.name}: must give the file of each tensor"),
        (b'{"weight_map": {"a": "../outside"}}', f"weight_map in {path.name}: must give the file of each tensor"),
        (b'{"weight_map": {"a": "gone"}}', "cannot read gone: "),
        (json.dumps({"weight_map": dict.fromkeys(tree["weight_map"], files[0])}).encode(), "no tensor "),
        (
            json.dumps({"weight_map": {**tree["weight_map"], Q: files[-1]}}).encode(),
            f"tensor {Q} is in {files[0]}, against",
        ),
        (
            json.dumps({"weight_map": {**tree["weight_map"], "more": files[0]}}).encode(),
            f"no tensor more in {files[0]}",
        ),
    ):
        path.write_bytes(content)
        assert told(tmp_path, LLAMA).startswith(line)


def test_a_folder_that_could_be_two_models_is_refused(llama_folder: Path) -> None:
    (llama_folder / "model.safetensors.index.json").write_text("{}")
    assert told(llama_folder, LLAMA).startswith("it holds both model.safetensors and model.safetensors.index.json")
    (llama_folder / "adapter_config.json").write_text("{}")
    assert told(llama_folder, LLAMA).startswith("it holds adapter_config.json: merge the adapter into the weights")


def test_a_folder_of_pipes_is_refused_and_not_waited_for(llama_folder: Path) -> None:
    (llama_folder / "model.safetensors").unlink()
    os.mkfifo(llama_folder / "model.safetensors")
    assert told(llama_folder, LLAMA) == "cannot read model.safetensors: there is no such file"


def test_more_layers_than_tensors_are_refused_before_they_are_listed(llama_folder: Path) -> None:
    tree = json.loads((llama_folder / "config.json").read_text())
    (llama_folder / "config.json").write_text(json.dumps(tree | {"num_hidden_layers": 10**12}))
    line = told(llama_folder, LLAMA.model_copy(update={"n_layers": 10**12}))
    assert line.startswith("config.json gives 1000000000000 layers, and there are ")
