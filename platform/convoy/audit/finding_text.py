"""From clashes to findings: the claims behind each with their text, and the arithmetic in a line. Pure."""

from convoy.audit.claims import Claims
from convoy.audit.findings import Finding, claim_line
from convoy.audit.hints import hint
from convoy.audit.parts import Parts
from convoy.audit.quantities.format import Figures
from convoy.audit.quantities.number import Figure
from convoy.audit.solver import CATALOG, Clash

FORM = Figures()


def claim_texts(parts: Parts) -> dict[str, str]:
    """What every claim says, by its name."""
    found: dict[str, str] = {}
    for run in parts.runs:
        _add_texts(found, run.claims, run.scope, run.owner)
    for told in parts.checkpoints:
        _add_texts(found, told.claims, told.scope, {})
    for sent in parts.collectives:
        _add_texts(found, sent.claims, sent.scope, {})
    for joined in parts.links:
        _add_texts(found, joined.claims, joined.scope, {})
    return found


def _add_texts(found: dict[str, str], claims: Claims, scope: str, owner: dict[str, str]) -> None:
    for key, field in type(claims).model_fields.items():
        value, name = getattr(claims, key), f"{owner.get(key, scope)}.{key}"
        if value == field.default or key in ("id", "run", "page", "date"):
            continue
        if isinstance(value, tuple) and all(isinstance(each, Figure) for each in value):
            for at, figure in enumerate(value):
                found[f"{name}[{at + 1}]" if len(value) > 1 else name] = figure.text
        elif isinstance(value, dict):
            found |= {f"{name}.{part}": figures[0].text for part, figures in value.items() if figures}
        elif not isinstance(value, tuple):
            found[name] = str(value)


def finding(clash: Clash, texts: dict[str, str], parts: Parts) -> Finding:
    told, implied = clash.told, clash.implied
    between = FORM.range(clash.quantity, implied.span) if implied.told else ""
    if clash.kind == "contradiction" and not clash.why:
        line = f"{implied.told}{between}, not {told.text}" if implied.told else f"{told.text} is not {implied.text}"
        line = f"{line} ({told.told})" if told.told and told.told != told.text else line
    else:
        between = FORM.range(clash.quantity, told.span) if told.told else ""
        line = f"{told.told or told.text}{between}: {clash.why}"
        if implied.text and implied.text not in clash.why:
            line = f"{told.told or told.text}{between}, more than {implied.told or implied.text}: {clash.why}"
    explained = hint(clash.quantity, told.span, implied.span, _gang(clash, parts)) if not clash.why else ""
    return Finding(
        kind=clash.kind,
        claims=tuple(claim_line(name, _text(texts, name)) for name in named(clash.of)),
        arithmetic=line,
        hint=explained,
        given=tuple(sorted(each.removeprefix(CATALOG) for each in clash.of if each.startswith(CATALOG))),
    )


def _text(texts: dict[str, str], name: str) -> str:
    """Of a claim, or of all that are told under its key."""
    return texts.get(name) or ", ".join(text for key, text in texts.items() if key.startswith(f"{name}["))


def named(of: frozenset[str]) -> list[str]:
    return sorted(each for each in of if not each.startswith(CATALOG))


def _gang(clash: Clash, parts: Parts) -> dict[str, float]:
    scope = clash.quantity.rpartition("/")[0]
    run = next((each for each in parts.runs if each.scope == scope), None)
    if run is None:
        return {}
    claims = run.claims
    each = claims.gpus_per_node[0].value if claims.gpus_per_node else run.machine.gpus if run.machine else 0.0
    gpus = claims.gpus[0].value if claims.gpus else 0.0
    nodes = claims.nodes[0].value if claims.nodes else gpus / each if each else 0.0
    return {"gpus": gpus or nodes * each, "nodes": nodes, "gpus_per_node": each}
