"""Layers and width of a model against its parameters. Pure."""

import re

from convoy.audit.facts import Run, model_size
from convoy.audit.findings import Finding, claim_line
from convoy.audit.quantities.format import count
from convoy.audit.quantities.number import BIG, Span, exactly

_BLOCK = Span(5.0, 12.0, 60.0)
"""Parameters over layers × width²: a block of a GPT has 12, of Falcon 10, of Mamba 6.7; with wide feed-forward layers
and embeddings Gemma 2B has 33 and Pythia 70M 45."""

_SHARED = re.compile(r"\balbert(?!a)|\buniversal[ _-]?transformer", re.IGNORECASE)
"""Models whose layers share their weights: ALBERT (Lan et al. 2019) has 12 of width 768 with 12M parameters in all."""


def passes(run: Run) -> Span:
    """Of a token through a parameter: one; of layers that share their weights up to one each, BIG where the page does
    not tell how many there are."""
    if not _SHARED.search(f"{run.claims.model} {run.claims.variant} {run.scope}"):
        return exactly(1.0)
    layers = run.claims.layers
    return Span(1.0, max(layers[0].value, 1.0), max(layers[0].high, 1.0)) if layers else Span(1.0, 1.0, BIG)


def findings(run: Run) -> list[Finding]:
    """Of experts, which there may be any number of, nothing is known."""
    claims = run.claims
    size = claims.parameters[0] if claims.parameters else model_size(claims.model)
    if size is None or claims.active_parameters or not (claims.layers and claims.width):
        return []
    layers, width = claims.layers[0], claims.width[0]
    shared = passes(run)
    blocks = layers.span.times(shared.power(-1)).times(width.span).times(width.span)
    if not size.span.apart(blocks.times(_BLOCK)):
        return []
    more = size.span.above(blocks.times(_BLOCK))
    factor, word = (_BLOCK.high, "at most") if more else (_BLOCK.low, "at least")
    number = layers.value if more else layers.value / shared.value
    text = f"{layers.text} layers" if number == layers.value else "1 layer"
    line = f"{text} × ({width.text})² × {factor:g} = {word} {count(number * width.value**2 * factor)} parameters"
    lines = [("parameters", size)] if claims.parameters else []
    told = [claim_line(run.claim(key), each.text) for key, each in [("layers", layers), ("width", width), *lines]]
    told += [] if claims.parameters else [claim_line(run.claim("model"), claims.model)]
    line = f"{line}, not {size.text}"
    if more:
        return [Finding(kind="unlikely", claims=tuple(told), arithmetic=line, hint="a mixture of experts?")]
    return [Finding(kind="contradiction", claims=tuple(told), arithmetic=line)]
