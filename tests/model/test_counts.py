import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from convoy.config.loader import read_overrides
from convoy.config.model import TransformerConfig
from convoy.model.build import build_model
from convoy.model.counts import (
    flops_per_token,
    forward_flops_per_token,
    mfu,
    parameter_count,
)
from convoy.model.transformer import Transformer
from tests.model.models import GPT2, LLAMA

PUBLISHED = {
    "gpt2-124m": 124_439_808,
    "gpt2-xl": 1_557_611_200,
    "gpt-7b": pytest.approx(6.7e9, rel=0.01),
    "llama-1b": 1_100_048_384,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "custom-30b": pytest.approx(30e9, rel=0.01),
    "llama-70b": 68_976_648_192,
    "gpt-175b": pytest.approx(174.6e9, rel=0.002),
}


def preset(name: str) -> TransformerConfig:
    return TransformerConfig.model_validate(read_overrides(f"model={name}")["model"])


def counted_on_meta(config: TransformerConfig) -> int:
    return sum(parameter.numel() for parameter in build_model(config).parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_have_the_published_number_of_parameters(name: str) -> None:
    assert parameter_count(preset(name)) == counted_on_meta(preset(name)) == PUBLISHED[name]


@pytest.mark.parametrize("norm", ["layernorm", "rmsnorm"])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("mlp", ["gelu", "swiglu"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_the_closed_form_holds_for_every_mixture(norm: str, positions: str, mlp: str, bias: bool, tied: bool) -> None:
    changes = {"norm": norm, "positions": positions, "mlp": mlp, "bias": bias, "tied_embeddings": tied}
    config = TransformerConfig.model_validate({**GPT2.model_dump(), **changes, "n_kv_heads": 2, "d_ff": 40})
    assert parameter_count(config) == counted_on_meta(config)


def test_forward_flops_are_what_pytorch_counts_in_the_matmuls() -> None:
    config = LLAMA.model_copy(update={"n_kv_heads": 4})
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        Transformer(config)(torch.zeros(3, 20, dtype=torch.long))
    norms = (2 * config.n_layers + 1) * config.d_model
    assert forward_flops_per_token(config, 20) * 60 == counter.get_total_flops() + 2 * norms * 60


def test_flops_per_token_of_gpt2_small_follow_the_palm_formula() -> None:
    config = preset("gpt2-124m")
    without_tables = 124_439_808 - (50257 + 1024) * 768 + 50257 * 768
    assert flops_per_token(config, 1024) == 6 * without_tables + 12 * 12 * 768 * 1024


def test_a_tied_head_costs_as_much_as_an_untied_one() -> None:
    untied = GPT2.model_copy(update={"tied_embeddings": False})
    assert flops_per_token(GPT2, 16) == flops_per_token(untied, 16)
    assert parameter_count(untied) - parameter_count(GPT2) == GPT2.vocab_size * GPT2.d_model


def test_counting_and_reading_a_config_do_not_import_torch() -> None:
    code = "import sys, convoy.model.counts, convoy.model.hf_config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_mfu_is_model_operations_over_the_peak_of_all_ranks() -> None:
    assert mfu(1000.0, 6e9, 1e13, ranks=2) == pytest.approx(0.3)
