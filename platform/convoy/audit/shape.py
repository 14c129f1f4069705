"""Layers and width of a model against its parameters. Pure."""

from convoy.audit.facts import Run, model_size
from convoy.audit.findings import Finding, claim_line
from convoy.audit.forms import count
from convoy.audit.span import Span

_BLOCK = Span(5.0, 12.0, 60.0)
"""Parameters over layers × width²: a block of a GPT has 12, of Falcon 10, of Mamba 6.7; with wide feed-forward layers
and embeddings Gemma 2B has 33 and Pythia 70M 45."""


def findings(run: Run) -> list[Finding]:
    """Of experts, which there may be any number of, nothing is known."""
    claims = run.claims
    size = claims.parameters[0] if claims.parameters else model_size(claims.model)
    if size is None or claims.active_parameters or not (claims.layers and claims.width):
        return []
    layers, width = claims.layers[0], claims.width[0]
    blocks = layers.span.times(width.span).times(width.span)
    if not size.span.apart(blocks.times(_BLOCK)):
        return []
    more = size.span.above(blocks.times(_BLOCK))
    factor, word = (_BLOCK.high, "at most") if more else (_BLOCK.low, "at least")
    line = f"{layers.text} layers × ({width.text})² × {factor:g} = {word} {count(blocks.value * factor)} parameters"
    lines = [("parameters", size)] if claims.parameters else []
    told = [claim_line(run.claim(key), each.text) for key, each in [("layers", layers), ("width", width), *lines]]
    told += [] if claims.parameters else [claim_line(run.claim("model"), claims.model)]
    line = f"{line}, not {size.text}"
    if more:
        return [Finding(kind="unlikely", claims=tuple(told), arithmetic=line, hint="a mixture of experts?")]
    return [Finding(kind="contradiction", claims=tuple(told), arithmetic=line)]
