import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from convoy.config.errors import ConfigError
from convoy.config.model import TransformerConfig
from convoy.model.generate import generate
from convoy.model.hf import correspondences, read_hf_weights, write_hf
from convoy.model.hf_config import hf_config, read_hf_config
from convoy.model.init import load_full_weights, parameter_names
from convoy.model.transformer import Transformer
from tests.model.models import GPT2, LLAMA, MIXED, random_tokens, ready

UNTIED_GPT2 = GPT2.model_copy(update={"name": "gpt2-untied", "tied_embeddings": False, "d_ff": 40})
TIED_LLAMA = LLAMA.model_copy(update={"name": "llama-tied", "tied_embeddings": True, "rope_theta": 500.0})
MULTI_HEAD_LLAMA = LLAMA.model_copy(update={"name": "llama-mha", "n_kv_heads": None})
CONFIGS = (GPT2, UNTIED_GPT2, LLAMA, TIED_LLAMA, MULTI_HEAD_LLAMA)
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)


def theirs_with_random_weights(config: TransformerConfig, folder: Path) -> PreTrainedModel:
    """A model of `transformers` whose every weight, norms and biases too, is random; saved to `folder`."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(hf_config(config, "float32")))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    model.save_pretrained(folder)
    return model


def ours_with_random_weights(config: TransformerConfig) -> Transformer:
    model = ready(config)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    return model


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
    theirs = theirs_with_random_weights(config, tmp_path / "hf")
    tokens = random_tokens(config, length=24)
    expected = theirs(tokens).logits
    assert expected.abs().max() > 1.0
    assert difference(loaded(tmp_path / "hf", config)(tokens), expected) <= 1e-4


@every_config
def test_transformers_computes_our_logits_from_what_we_write(config: TransformerConfig, tmp_path: Path) -> None:
    ours = ours_with_random_weights(config)
    write_hf(tmp_path, config, state(ours))
    theirs, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    tokens = random_tokens(config, length=24)
    assert difference(theirs(tokens).logits, ours(tokens)) <= 1e-4


@every_config
def test_transformers_generates_what_we_generate(config: TransformerConfig, tmp_path: Path) -> None:
    ours = ours_with_random_weights(config)
    write_hf(tmp_path, config, state(ours))
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path)
    generated = theirs.generate(torch.tensor([[5, 7, 11]]), max_new_tokens=12, do_sample=False, pad_token_id=0)
    assert generated[0, 3:].tolist() == generate(ours, [5, 7, 11], 12, temperature=0.0, seed=0)


@every_config
def test_what_we_write_we_read_back_bit_for_bit(config: TransformerConfig, tmp_path: Path) -> None:
    written = state(ours_with_random_weights(config))
    write_hf(tmp_path, config, written)
    read = dict(read_hf_weights(tmp_path, read_hf_config(tmp_path)))
    assert read.keys() == written.keys()
    assert all(torch.equal(read[name], written[name]) for name in written)


@every_config
def test_every_parameter_has_exactly_one_correspondence(config: TransformerConfig) -> None:
    assert sorted(pair.ours for pair in correspondences(config)) == sorted(state(ready(config)))


def test_a_tied_head_in_the_state_is_not_written_twice(tmp_path: Path) -> None:
    write_hf(tmp_path, GPT2, ready(GPT2).state_dict())
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")


def test_large_models_are_written_to_several_files_that_transformers_and_we_read(tmp_path: Path) -> None:
    ours = ours_with_random_weights(LLAMA)
    write_hf(tmp_path, LLAMA, state(ours), max_file_bytes=20_000)
    files = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert len(files) > 2
    assert files[0] == f"model-00001-of-{len(files):05d}.safetensors"
    tokens = random_tokens(LLAMA)
    assert difference(AutoModelForCausalLM.from_pretrained(tmp_path)(tokens).logits, ours(tokens)) <= 1e-4
    assert torch.equal(loaded(tmp_path, LLAMA)(tokens), ours(tokens))


def test_bf16_weights_stay_bf16_in_the_folder(tmp_path: Path) -> None:
    written = {name: tensor.bfloat16() for name, tensor in state(ours_with_random_weights(GPT2)).items()}
    write_hf(tmp_path, GPT2, written)
    assert AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").dtype == torch.bfloat16
    assert all(tensor.dtype == torch.bfloat16 for _, tensor in read_hf_weights(tmp_path, GPT2))


def test_a_folder_of_a_bare_model_with_masks_is_read(tmp_path: Path) -> None:
    """The first published GPT-2 weights have no `transformer.` prefix and hold attention masks."""
    ours = ours_with_random_weights(GPT2)
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


def trained_tokenizer(path: Path) -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.train_from_iterator(["def f(x): return x"], BpeTrainer(vocab_size=40, special_tokens=["<|endoftext|>"]))
    tokenizer.save(str(path))
    return tokenizer


def test_the_tokenizer_and_the_end_of_document_reach_transformers(tmp_path: Path) -> None:
    tokenizer = trained_tokenizer(tmp_path / "trained.json")
    eos_id = tokenizer.token_to_id("<|endoftext|>")
    write_hf(tmp_path / "out", GPT2, state(ready(GPT2)), tmp_path / "trained.json", eos_id)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs("return f").input_ids == tokenizer.encode("return f").ids
    assert (theirs.eos_token_id, theirs.model_max_length) == (eos_id, GPT2.max_sequence_length)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config.eos_token_id == eos_id


def test_without_an_end_of_document_none_is_made_up(tmp_path: Path) -> None:
    trained_tokenizer(tmp_path / "trained.json")
    write_hf(tmp_path / "out", GPT2, state(ready(GPT2)), tmp_path / "trained.json")
    assert AutoTokenizer.from_pretrained(tmp_path / "out").eos_token is None
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").generation_config.eos_token_id is None
