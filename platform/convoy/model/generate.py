"""Sampling from a model by full forward passes, for sample texts and tests; there is no key-value cache."""

from collections.abc import Sequence

import torch
from torch import Tensor

from convoy.model.custom import CustomModel
from convoy.model.transformer import Transformer


@torch.no_grad()
def generate(
    model: Transformer | CustomModel,
    prompt_ids: Sequence[int],
    new_tokens: int,
    temperature: float,
    seed: int,
    eos_id: int | None = None,
) -> list[int]:
    """Up to `new_tokens` ids that continue the prompt; `eos_id`, when drawn, is the last of them.

    temperature: 0 takes the most likely token. The context is the last `model.config.max_sequence_length`
    tokens. With a sharded model all ranks call this together: each draws with the same seed, and there
    are `new_tokens` forward passes whatever is drawn, so that no rank leaves a collective early.
    Raises ValueError for an empty prompt.
    """
    if not prompt_ids:
        raise ValueError("prompt_ids is empty: needs at least one token")
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    longest = model.config.max_sequence_length
    ids = list(prompt_ids)
    was_training = model.training
    model.eval()
    for _ in range(new_tokens):
        logits_bsv = model(torch.tensor([ids[-longest:]], device=device))
        ids.append(_draw_token(logits_bsv[0, -1].float().cpu(), temperature, generator))
    model.train(was_training)
    drawn = ids[len(prompt_ids) :]
    return drawn[: drawn.index(eos_id) + 1] if eos_id in drawn else drawn


def _draw_token(logits_v: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits_v.argmax())
    probabilities_v = torch.softmax(logits_v / temperature, dim=0)
    return int(torch.multinomial(probabilities_v, 1, generator=generator))
