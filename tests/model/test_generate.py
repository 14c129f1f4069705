import pytest
import torch
from torch import Tensor

from convoy.config.model import TransformerConfig
from convoy.model.generate import generate
from convoy.model.transformer import Transformer
from tests.model.models import FORMS, GPT2, LLAMA, ready, sharded
from tests.ranks import in_a_group

PROMPT = [5, 7, 11]


@pytest.mark.parametrize("config", FORMS.values(), ids=FORMS)
def test_temperature_zero_takes_the_most_likely_token_each_time(config: TransformerConfig) -> None:
    model = ready(config)
    ids = list(PROMPT)
    for _ in range(6):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert generate(model, PROMPT, 6, temperature=0.0, seed=0) == ids[3:]


def test_sampling_is_repeated_by_the_seed_and_changed_by_another() -> None:
    model = ready(GPT2)
    first, again = (generate(model, PROMPT, 12, temperature=1.0, seed=1) for _ in range(2))
    assert first == again
    assert first != generate(model, PROMPT, 12, temperature=1.0, seed=2)


def test_sampling_does_not_touch_the_global_random_state() -> None:
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    generate(ready(GPT2), PROMPT, 4, temperature=1.0, seed=1)
    assert torch.equal(torch.rand(2), expected)


def test_sampling_draws_with_the_models_probabilities() -> None:
    model = ready(GPT2.model_copy(update={"vocab_size": 4}))
    expected = torch.softmax(model(torch.tensor([[1, 2]])).detach()[0, -1].double() / 2.0, dim=0)
    drawn = [generate(model, [1, 2], 1, temperature=2.0, seed=seed)[0] for seed in range(600)]
    frequencies = torch.bincount(torch.tensor(drawn), minlength=4).double() / 600
    assert float((frequencies - expected).abs().max()) < 0.08


def test_the_context_is_cropped_to_the_longest_sequence() -> None:
    model = ready(LLAMA)
    prompt = list(range(20))
    ids = generate(model, prompt, 10, temperature=0.0, seed=0)
    window = (prompt + ids[:9])[-24:]
    assert len(ids) == 10
    assert ids[9] == int(model(torch.tensor([window]))[0, -1].argmax())


def test_the_end_of_a_document_ends_the_text_and_is_its_last_token() -> None:
    model = ready(GPT2)
    everything = generate(model, PROMPT, 12, temperature=1.0, seed=1)
    eos_id = everything[4]
    assert (
        generate(model, PROMPT, 12, temperature=1.0, seed=1, eos_id=eos_id)
        == everything[: everything.index(eos_id) + 1]
    )


class CountingTransformer(Transformer):
    """Counts its forward passes."""

    passes = 0

    def forward(
        self, tokens_bs: Tensor, targets_bs: Tensor | None = None, documents_bs: Tensor | None = None
    ) -> Tensor:
        self.passes += 1
        return super().forward(tokens_bs, targets_bs, documents_bs)


def test_the_number_of_forward_passes_does_not_depend_on_what_is_drawn() -> None:
    model = CountingTransformer(GPT2)
    first = generate(model, PROMPT, 9, temperature=0.0, seed=0)[0]
    assert generate(model, PROMPT, 9, temperature=0.0, seed=0, eos_id=first) == [first]
    assert model.passes == 18


@pytest.mark.parametrize("training", [True, False])
def test_the_training_mode_is_as_before_and_dropout_is_off_meanwhile(training: bool) -> None:
    model = ready(GPT2.model_copy(update={"dropout": 0.5})).train(training)
    expected = generate(ready(GPT2), PROMPT, 5, temperature=0.0, seed=0)
    assert generate(model, PROMPT, 5, temperature=0.0, seed=0) == expected
    assert model.training is training


def test_an_empty_prompt_is_refused() -> None:
    with pytest.raises(ValueError, match="prompt_ids is empty"):
        generate(ready(GPT2), [], 5, temperature=0.0, seed=0)


def text_on_rank(rank: int) -> list[int]:
    return generate(sharded(GPT2), PROMPT, 6, temperature=1.0, seed=4)


def test_all_ranks_of_a_sharded_model_draw_what_one_process_draws() -> None:
    expected = generate(ready(GPT2), PROMPT, 6, temperature=1.0, seed=4)
    assert in_a_group(2, text_on_rank) == [expected, expected]
