"""From clashes to findings: the claims behind each with their text, and the arithmetic in a line. Pure."""

from convoy.audit.claims import Claims
from convoy.audit.findings import Finding, claim_line
from convoy.audit.hints import hint
from convoy.audit.parts import Parts
from convoy.audit.quantities.format import written_range
from convoy.audit.quantities.number import Figure
from convoy.audit.solver import CATALOG, Clash


def claim_texts(parts: Parts) -> dict[str, str]:
    """What every claim says, by its name."""
    texts: dict[str, str] = {}
    for run in parts.runs:
        _add_texts(texts, run.claims, run.scope, run.owner)
    for item in (*parts.checkpoints, *parts.transfers):
        _add_texts(texts, item.claims, item.scope, {})
    return texts


def _add_texts(texts: dict[str, str], claims: Claims, scope: str, owner: dict[str, str]) -> None:
    for key, field in type(claims).model_fields.items():
        value, name = getattr(claims, key), f"{owner.get(key, scope)}.{key}"
        if value == field.default or key in ("id", "run", "page", "date"):
            continue
        if isinstance(value, tuple) and all(isinstance(each, Figure) for each in value):
            for at, figure in enumerate(value):
                texts[f"{name}[{at + 1}]" if len(value) > 1 else name] = figure.text
        elif isinstance(value, dict):
            texts |= {f"{name}.{part}": figures[0].text for part, figures in value.items() if figures}
        elif not isinstance(value, tuple):
            texts[name] = str(value)


def finding(clash: Clash, texts: dict[str, str], parts: Parts) -> Finding:
    stated, implied = clash.stated, clash.implied
    between = written_range(clash.quantity, implied.span) if implied.arithmetic else ""
    if clash.kind == "contradiction" and not clash.why:
        line = f"{stated.text} is not {implied.text}"
        if implied.arithmetic:
            line = f"{implied.arithmetic}{between}, not {stated.text}"
        if stated.arithmetic and stated.arithmetic != stated.text:
            line += f" ({stated.arithmetic})"
    else:
        between = written_range(clash.quantity, stated.span) if stated.arithmetic else ""
        line = f"{stated.arithmetic or stated.text}{between}"
        if implied.text and implied.text not in clash.why:
            line += f", more than {implied.arithmetic or implied.text}"
        line += f": {clash.why}"
    explained = hint(clash.quantity, stated.span, implied.span, _gang(clash, parts)) if not clash.why else ""
    return Finding(
        kind=clash.kind,
        claims=tuple(claim_line(name, _text(texts, name)) for name in named(clash.of)),
        arithmetic=line,
        hint=explained,
        given=tuple(sorted(each.removeprefix(CATALOG) for each in clash.of if each.startswith(CATALOG))),
    )


def _text(texts: dict[str, str], name: str) -> str:
    """Of a claim, or of all under its key."""
    return texts.get(name) or ", ".join(text for key, text in texts.items() if key.startswith(f"{name}["))


def named(of: frozenset[str]) -> list[str]:
    return sorted(each for each in of if not each.startswith(CATALOG))


def _gang(clash: Clash, parts: Parts) -> dict[str, float]:
    scope = clash.quantity.rpartition("/")[0]
    run = next((each for each in parts.runs if each.scope == scope), None)
    if run is None:
        return {}
    each, nodes = run.gpus_per_node, run.claims.nodes
    gpus = run.claims.gpus[0].value if run.claims.gpus else 0.0
    machines = nodes[0].value if nodes else gpus / each if each else 0.0
    return {"gpus": gpus or machines * each, "nodes": machines, "gpus_per_node": each}
