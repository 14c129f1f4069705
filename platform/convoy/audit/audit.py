"""From the claims of a page to what of them cannot be true. Pure."""

import re
from collections.abc import Sequence
from datetime import date
from typing import NamedTuple

from convoy.audit import checkpoints, collectives, energy, hardware, links, memory, money, pairs, rates, survival
from convoy.audit.checkpoints import Checkpoint
from convoy.audit.claims import SETTINGS, PageClaims
from convoy.audit.facts import PAGE, Run, runs_of, stated
from convoy.audit.findings import WRONG, Audit, Finding, Implied, Near, claim_line
from convoy.audit.forms import Figures
from convoy.audit.hints import hint
from convoy.audit.kinds import Claims
from convoy.audit.solve import CATALOG, Bound, Clash, Known, Law, Solved, Value, compare, follow, minimal
from convoy.audit.span import Figure
from convoy.catalog.references import nearest

_SUBJECTS = (rates, money, memory, survival, energy)

_ORDER = (
    "scaling_efficiency", "speedup", "mfu", "hfu", "tflops_per_gpu", "time", "cost_per_token", "cost", "spot_share",
    "gpu_hours", "compute", "step_time", "tokens", "steps", "batch_tokens", "batch", "bandwidth", "size", "save_time",
    "overhead", "throughput", "throughput_per_gpu",
)  # fmt: skip
"""Of quantities, that which a contradiction is told by: what a page boasts of before what it measured."""

_GRAVITY = ("contradiction", "impossible", "unlikely", "cannot be checked")

_NO_FIGURES = frozenset({"variant", "relative_to", "offload", "directions", "operation", "scope", "to", "contents"})
"""Keys that tell what other claims are about."""

_TOLD = (
    "throughput", "throughput_per_gpu", "mfu", "step_time", "tokens", "time", "gpu_hours", "total_price_per_hour",
    "cost",
    "cost_per_token", "speedup", "scaling_efficiency", "state_per_gpu", "tokens_per_joule", "lost_share", "size",
    "bandwidth", "overhead",
)  # fmt: skip
"""Quantities that are told of a run where it does not tell them itself, in this order; others are steps to these."""

_FORM = Figures()


class _Parts(NamedTuple):
    """Of a page, each with what is known of its machines."""

    runs: list[Run]
    checkpoints: list[Checkpoint]
    collectives: list[collectives.Collective]
    links: list[links.Link]


def audit(page: PageClaims) -> Audit:
    """Raises ConfigError for an operation or a link that there is not."""
    parts = _parts(page)
    solved, given = _solved(parts)
    texts = _texts(page, parts)
    clashes = minimal(solved.clashes, _ORDER)
    found = [_finding(clash, texts, parts) for clash in clashes]
    found += pairs.findings(parts.runs)
    found += [
        each for run in parts.runs for each in (*survival.findings(run), *hardware.findings(run), *money.findings(run))
    ]
    found += [each for told in parts.collectives for each in collectives.findings(told)]
    found += [each for told in parts.links for each in links.findings(told)]
    found += _dates(page, parts.runs)
    # What runs share is told once.
    found = sorted(dict.fromkeys(found), key=lambda each: _GRAVITY.index(each.kind))
    return Audit(
        page=page.page,
        consistent=not any(each.kind in WRONG for each in found),
        findings=tuple(found),
        not_checked=tuple(_unchecked(solved, given, texts, parts, found)),
        implied=tuple(_implied(solved.known)),
        references=tuple(_references(parts.runs, solved.known)),
        claims=sum(name.rpartition(".")[2] not in _NO_FIGURES for name in texts),
    )


def _parts(page: PageClaims) -> _Parts:
    runs = runs_of(page)
    by_id = {run.claims.id: run for run in runs if run.claims.id}
    shared = _shared(runs)

    def of(name: str) -> Run | None:
        return by_id[name] if name else shared

    def scopes(section: str, items: Sequence[Claims]) -> list[str]:
        ids = [getattr(each, "id", "") for each in items]
        return [f"{section}.{name}" if name else f"{section}[{at + 1}]" for at, name in enumerate(ids)]

    saved = zip(scopes("checkpoints", page.checkpoints), page.checkpoints, strict=True)
    sent = zip(scopes("collectives", page.collectives), page.collectives, strict=True)
    joined = zip(scopes("links", page.links), page.links, strict=True)
    return _Parts(
        runs,
        [Checkpoint(scope, told, of(told.run)) for scope, told in saved],
        [collectives.collective(scope, told, of(told.run)) for scope, told in sent],
        [links.link(scope, told, of(told.run)) for scope, told in joined],
    )


def _shared(runs: Sequence[Run]) -> Run | None:
    """Of what names no run: the only run there is, or what stands at the top of the file."""
    below = [run for run in runs if run.scope != PAGE]
    return below[0] if len(below) == 1 else next((run for run in runs if run.scope == PAGE), None)


def _solved(parts: _Parts) -> tuple[Solved, Known]:
    given: Known = {}
    laws: list[Law] = [*pairs.laws(parts.runs), *pairs.without_base(parts.runs)]
    bounds: list[Bound] = []
    for run in parts.runs:
        given |= stated(run) | survival.stated(run)
        laws += [law for subject in _SUBJECTS for law in subject.laws(run)]
        laws += money.savings(run)
        bounds += [*rates.bounds(run), *money.bounds(run), *memory.bounds(run), *survival.bounds(run)]
    for told in parts.checkpoints:
        given |= checkpoints.stated(told)
        laws += checkpoints.laws(told)
        bounds += checkpoints.bounds(told)
    known = follow(given, laws, _FORM)
    known |= checkpoints.unproductive(parts.checkpoints, known)
    return compare(known, [*bounds, *pairs.bounds(parts.runs, known)]), given


def _texts(page: PageClaims, parts: _Parts) -> dict[str, str]:
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


def _finding(clash: Clash, texts: dict[str, str], parts: _Parts) -> Finding:
    told, implied = clash.told, clash.implied
    between = _FORM.range(clash.quantity, implied.span) if implied.told else ""
    if clash.kind == "contradiction" and not clash.why:
        line = f"{implied.told}{between}, not {told.text}" if implied.told else f"{told.text} is not {implied.text}"
        line = f"{line} ({told.told})" if told.told and told.told != told.text else line
    else:
        between = _FORM.range(clash.quantity, told.span) if told.told else ""
        line = f"{told.told or told.text}{between}: {clash.why}"
        if implied.text and implied.text not in clash.why:
            line = f"{told.told or told.text}{between}, more than {implied.told or implied.text}: {clash.why}"
    explained = hint(clash.quantity, told.span, implied.span, _gang(clash, parts)) if not clash.why else ""
    return Finding(
        kind=clash.kind,
        claims=tuple(claim_line(name, _text(texts, name)) for name in _named(clash.of)),
        arithmetic=line,
        hint=explained,
        given=tuple(sorted(each.removeprefix(CATALOG) for each in clash.of if each.startswith(CATALOG))),
    )


def _text(texts: dict[str, str], name: str) -> str:
    """Of a claim, or of all that are told under its key."""
    return texts.get(name) or ", ".join(text for key, text in texts.items() if key.startswith(f"{name}["))


def _named(of: frozenset[str]) -> list[str]:
    return sorted(each for each in of if not each.startswith(CATALOG))


def _gang(clash: Clash, parts: _Parts) -> dict[str, float]:
    scope = clash.quantity.rpartition("/")[0]
    run = next((each for each in parts.runs if each.scope == scope), None)
    if run is None:
        return {}
    claims = run.claims
    each = claims.gpus_per_node[0].value if claims.gpus_per_node else run.machine.gpus if run.machine else 0.0
    gpus = claims.gpus[0].value if claims.gpus else 0.0
    nodes = claims.nodes[0].value if claims.nodes else gpus / each if each else 0.0
    return {"gpus": gpus or nodes * each, "nodes": nodes, "gpus_per_node": each}


def _unchecked(
    solved: Solved, given: Known, texts: dict[str, str], parts: _Parts, found: Sequence[Finding]
) -> list[Finding]:
    """Figures that were compared with nothing."""
    told = {name for values in given.values() for value in values for name in _named(value.of)}
    involved = {line.split(" = ")[0] for each in found for line in each.claims}
    rest = [
        name
        for name in texts
        if name in told
        and name not in solved.compared
        and name not in involved
        and name.rpartition(".")[2] not in SETTINGS
    ]
    line = "nothing else on the page, and nothing in the catalog, implies it"
    unchecked = [
        Finding(kind="cannot be checked", claims=(claim_line(name, texts[name]),), arithmetic=line) for name in rest
    ]
    unchecked += [each for sent in parts.collectives for each in collectives.unchecked(sent)]
    unchecked += [each for joined in parts.links for each in links.unchecked(joined)]
    return [*unchecked, *_unknown_machines(parts.runs)]


def _unknown_machines(runs: Sequence[Run]) -> list[Finding]:
    found = []
    for run in runs:
        for key, known in (("gpu", run.kind), ("instance", run.machine)):
            value = getattr(run.claims, key)
            if value and known is None:
                line = claim_line(run.claim(key), value)
                found.append(Finding(kind="cannot be checked", claims=(line,), arithmetic="not in the catalog"))
    return list(dict.fromkeys(found))


def _implied(known: Known) -> list[Implied]:
    """The shortest way to what the page does not say."""
    found = []
    scopes = dict.fromkeys(quantity.rpartition("/")[0] for quantity in known)
    if any(scope.startswith("runs") for scope in scopes):
        scopes.pop(PAGE, None)  # settings of theirs
    for scope in scopes:
        for quantity in (f"{scope}/{name}" for name in _TOLD):
            first = _shortest(known[quantity]) if known.get(quantity) else None
            if first is not None and first.told and first.told != first.text:
                value = f"{first.text}{_FORM.range(quantity, first.span)}"
                found.append(Implied(quantity=quantity.replace("/", "."), value=value, arithmetic=first.told))
    return found


def _shortest(values: Sequence[Value]) -> Value:
    return min(values, key=lambda value: (bool(value.told), len(value.of), len(value.told)))


def _references(runs: Sequence[Run], known: Known) -> list[Near]:
    """Once for all runs of a model on such GPUs."""
    found: dict[tuple[str, int], Near] = {}
    for run in runs:
        sizes, rates_known = known.get(run.quantity("parameters"), ()), run.quantity("throughput_per_gpu") in known
        if run.kind is None or not sizes or not sizes[0].span.value or not rates_known:
            continue
        for at, each in enumerate(nearest(run.kind.name, sizes[0].span.value)):
            found.setdefault((each.model + each.gpu + str(each.gpus), at), Near(run=run.scope, **each.model_dump()))
    return list(found.values())


def _dates(page: PageClaims, runs: Sequence[Run]) -> list[Finding]:
    """A price of a day after the page."""
    found, of_page = [], _day(page.date)
    for run in runs:
        day = _day(run.claims.price_date)
        if of_page and day and day > of_page:
            lines = (claim_line("page.date", page.date), claim_line(run.claim("price_date"), run.claims.price_date))
            line = f"a page of {of_page} has no price of {day}"
            found.append(Finding(kind="contradiction", claims=lines, arithmetic=line))
    return list(dict.fromkeys(found))


def _day(text: str) -> date | None:
    """The first of the month, or of the year, where no more is told."""
    found = re.fullmatch(r"(\d{4})(?:-(\d{1,2}))?(?:-(\d{1,2}))?", text.strip())
    try:
        return date(int(found[1]), int(found[2] or 1), int(found[3] or 1)) if found else None
    except ValueError:
        return None
