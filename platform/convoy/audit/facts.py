"""From the claims of a page to values of quantities, and what the catalog has of its machines. Pure.

A quantity's name is `<scope>/<name>`, such as `runs.fast/throughput`; a claim's is `<scope>.<key>`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from convoy.audit import machines
from convoy.audit.claims import PRICES, SETTINGS, Claims, Figures, PageClaims
from convoy.audit.machines import GpuKind
from convoy.audit.quantities.number import Figure, Span, exactly
from convoy.audit.quantities.units import parse_figure
from convoy.audit.solver import CATALOG, Quantities, Value
from convoy.catalog.instances import Instance

PAGE = "page"
"""Scope of the top of the file."""

_RENAMED = {
    "cost_per_tokens": ("cost_per_token", 1.0),
    "peak_tflops": ("peak", 1.0),
    "gpu_hours": ("gpu_hours", 3600.0),
    "bytes_per_parameter": ("", 1.0),  # a constant of the law of states
}
"""Quantities of keys with another name, and the factor to them."""

_PER = {
    ("price_per_hour", "gpu"): "price_per_gpu_hour", ("total_price_per_hour", "node"): "price_per_hour",
    ("memory_per_gpu", "node"): "memory_per_node", ("gpu_memory", "node"): "memory_per_node",
    ("memory_per_gpu", "gpu"): "memory_per_gpu", ("gpu_memory", "gpu"): "gpu_memory",
    ("throughput_per_gpu", "gpu"): "throughput_per_gpu", ("price_per_gpu_hour", "gpu"): "price_per_gpu_hour",
    ("tflops_per_gpu", "gpu"): "tflops_per_gpu", ("price_per_hour", "node"): "price_per_hour",
    ("spot_price", "node"): "spot_price", ("on_demand_price", "node"): "on_demand_price",
    ("global_batch", "tokens"): "batch_tokens", ("global_batch", "sequences"): "batch",
}  # fmt: skip
"""Quantities of keys whose text says what the figure is of; of all others it is `<key>_per_<what>`."""

_COMPLEMENTS = {"goodput": "not_good", "savings": "spot_share"}
"""Shares, and what the rest of each is."""

_LORA = re.compile(r"\bq?lora\b|\badapters?\b|\bpeft\b|\bfrozen\b", re.IGNORECASE)

_SIZES = {"gpus", "nodes"}

_SMALL = 0.2
"""So far, relative, is the name of a model with less than a billion parameters from them: much of it are embeddings,
which are counted or not."""


class Section(NamedTuple):
    """A run with the settings of the page, or a checkpoint, collective or link; and its machines."""

    scope: str
    claims: Claims
    machine: Instance | None
    key_scopes: Mapping[str, str] = {}
    """Scope of each key, where that is another one."""
    kind: GpuKind | None = None
    run: "Section | None" = None
    """Of a checkpoint, collective or link: the run that it belongs to."""
    adapters: bool = False
    """Most parameters are frozen, as with LoRA: of them there are neither gradients nor states."""

    def claim_name(self, key: str) -> str:
        return f"{self.key_scopes.get(key, self.scope)}.{key}"

    def quantity_name(self, name: str) -> str:
        return f"{self.scope}/{name}"

    def figures(self, key: str) -> Figures:
        return self.claims.figures(key)

    def span(self, key: str) -> Span | None:
        figures = self.figures(key)
        return figures[0].span if figures else None

    def value(self, key: str) -> float:
        """0: the page does not say."""
        figures = self.figures(key)
        return figures[0].value if figures else 0.0

    def word(self, key: str) -> str:
        return self.claims.word(key)

    def claims_on(self, *keys: str) -> frozenset[str]:
        """Those of the claims that the page makes."""
        return frozenset(self.claim_name(key) for key in keys if self.claims.entries.get(key))

    @property
    def gpus_per_node(self) -> float:
        """GPUs of a machine; 0: nobody says."""
        return self.value("gpus_per_node") or (self.machine.gpus if self.machine else 0.0)

    @property
    def nodes(self) -> float:
        """0: nobody says."""
        each = self.gpus_per_node
        return self.value("nodes") or (self.value("gpus") / each if each else 0.0)

    @property
    def gpus(self) -> float:
        """All GPUs; 0: the page does not say."""
        return self.value("gpus") or self.value("nodes") * self.gpus_per_node


def runs_of(page: PageClaims) -> list[Section]:
    """The run at the top of the file, if it has keys of one, and each run below `runs`."""
    top = page.top.entries
    runs = [_run_section(page, PAGE, page.top, {})] if top else []
    for at, run in enumerate(page.runs):
        # A run that says how many GPUs it has does not mean the page's number of machines.
        own = set(run.entries) | (_SIZES if _SIZES & set(run.entries) else set())
        taken = {key: entry for key, entry in top.items() if key in SETTINGS and key not in own}
        scope = f"runs.{run.word('id')}" if run.word("id") else f"runs[{at + 1}]"
        runs.append(_run_section(page, scope, Claims("runs", {**run.entries, **taken}), dict.fromkeys(taken, PAGE)))
    return runs


def _run_section(page: PageClaims, scope: str, claims: Claims, key_scopes: dict[str, str]) -> Section:
    machine = machines.find_machine(claims.word("instance")) if claims.word("instance") else None
    name = claims.word("gpu")
    if not name and machine is not None and machine.gpu is not None:
        name = f"{machine.gpu.name} {round(machine.gpu.memory_mib / 1024)}GB"
    kind = machines.gpu_kind(name) if name else None
    if kind is not None and machine is not None and machine.nvlink_gb_per_second:
        kind = kind._replace(chips=kind.chips[:1])  # of NVLink machines the GPUs are SXM modules
    words = f"{page.page} {claims.word('model')} {claims.word('variant')} {scope}"
    adapters = any(part.word("contents") == "adapters" for part in page.parts) or bool(_LORA.search(words))
    return Section(scope, claims, machine, key_scopes, kind, adapters=adapters)


def parts_of(page: PageClaims, runs: Sequence[Section]) -> list[Section]:
    """Checkpoints, collectives and links; what names no run belongs to the only one, or to the top of the file."""
    by_id = {run.word("id"): run for run in runs}
    below = [run for run in runs if run.scope != PAGE]
    shared = below[0] if len(below) == 1 else next((run for run in runs if run.scope == PAGE), None)
    parts: list[Section] = []
    for claims in page.parts:
        run = by_id[claims.word("run")] if claims.word("run") else shared
        instance, at = claims.word("instance"), sum(each.claims.section == claims.section for each in parts) + 1
        machine = machines.find_machine(instance) if instance else run.machine if run else None
        scope = f"{claims.section}.{claims.word('id')}" if claims.word("id") else f"{claims.section}[{at}]"
        parts.append(Section(scope, claims, machine, run=run))
    return parts


def stated_quantities(section: Section) -> Quantities:
    """What the page states, and the catalog has of the machines of a run."""
    values: Quantities = {}
    for key in section.claims.entries:
        figures = section.figures(key)
        for at, figure in enumerate(figures):
            for name, value in _figure_values(section, key, figure, at if len(figures) > 1 else None):
                values.setdefault(section.quantity_name(name), []).append(value)
    model, exact = model_size(section.word("model")), section.span("parameters")
    if model is not None and not (exact and not model.span.apart(exact)):  # its name adds nothing
        value = Value(model.span, section.claims_on("model"), f"{model.text} parameters")
        values.setdefault(section.quantity_name("parameters"), []).append(value)
    for name, value in _catalog_values(section) if section.claims.section == "runs" else ():
        values.setdefault(section.quantity_name(name), []).append(value)
    return values


def model_size(model: str) -> Figure | None:
    """`7B` of `Llama-2-7B`; None for a mixture such as `8x7B`, `30B-A3B` or `17B-16E`, and where there is no size."""
    model = re.sub(r"(?<=\d)[\s-]?(b|m|tr)illion\b", lambda word: word[1][0], model, flags=re.IGNORECASE)
    match = re.search(r"(?<![\dx×.])(\d+(?:\.\d+)?)\s?([bBmMtT])(?![a-zA-Z0-9])", model)
    mixture = re.search(r"\d+\s*[x×]\s*\d|moe|-A\d+(?:\.\d+)?B|-\d+E\b", model, re.IGNORECASE)
    size = parse_figure("size", f"{match[1]}{match[2].upper()}") if match and not mixture else None
    if size is None or size.value >= 1e9:
        return size
    return size.model_copy(update={"low": size.value * (1 - _SMALL), "high": size.value * (1 + _SMALL)})


def _figure_values(section: Section, key: str, figure: Figure, index: int | None) -> list[tuple[str, Value]]:
    name, factor = _RENAMED.get(key, (key, 1.0))
    if figure.per:
        name = _PER.get((key, figure.per), f"{key}_per_{figure.per}")
    claims = frozenset({section.claim_name(key) + (f"[{index + 1}]" if index is not None else "")})
    value = Value(figure.span.scaled(factor), claims, _text_with_noun(key, figure))
    values = [(name, value)] if name else []
    if key in _COMPLEMENTS:
        values.append((_COMPLEMENTS[key], Value(figure.span.complement(), claims, f"1 - {value.text}")))
    return values


_NOUNS = {
    "tokens": "tokens", "steps": "steps", "gpus": "GPUs", "nodes": "nodes", "gpus_per_node": "GPUs per node",
    "parameters": "parameters", "sequence_length": "tokens a sequence", "accumulation": "passes",
    "interruptions": "interruptions", "recovered": "recovered", "gpu_hours": "GPU-hours", "savings": "savings",
    "tflops_per_gpu": "TFLOP/s", "mfu": "MFU", "hfu": "HFU", "goodput": "goodput", "scaling_efficiency": "efficiency",
    "interval_steps": "steps", "overhead": "overhead", "price_per_hour": "per node", "price_per_gpu_hour": "per GPU",
}  # fmt: skip
"""That a bare number is of."""


def _text_with_noun(key: str, figure: Figure) -> str:
    noun = _NOUNS.get(key, "")
    if not noun or (key.startswith("price") and figure.per) or re.search(r"hours|iterations?", figure.text):
        return figure.text
    is_said = noun.split()[0].lower()[:5] in figure.text.lower().replace(" ", "-")
    return figure.text if is_said else f"{figure.text} {noun}"


def _catalog_values(run: Section) -> list[tuple[str, Value]]:
    """GPUs of a machine, their memory and peak, and its list price."""
    values: list[tuple[str, Value]] = []
    kind, machine = run.kind, run.machine
    if machine is not None and machine.gpus:
        of = run.claims_on("instance") | {f"{CATALOG}{machine.name}"}
        values.append(("gpus_per_node", Value(exactly(machine.gpus), of, f"{machine.gpus} GPUs in a {machine.name}")))
        values += _list_price(run, machine)
    if kind is not None:
        of = run.claims_on("gpu" if run.word("gpu") else "instance") | {f"{CATALOG}{kind.name}"}
        peak, precision = kind.peak(run.word("precision")), run.word("precision")
        if peak is not None and not run.figures("peak_tflops"):
            text = f"{peak.value / 1e12:g} TFLOP/s ({kind.name}, {precision}, dense)"
            values.append(("peak", Value(peak, of, text)))
        if kind.memory is not None:
            values.append(
                ("gpu_memory", Value(kind.memory, of, f"the {kind.memory.high / 2**30:.0f} GiB of {kind.name}"))
            )
    return values


def _list_price(run: Section, machine: Instance) -> list[tuple[str, Value]]:
    """The page's own price, if any, replaces the catalog's."""
    market = run.word("market")
    prices = machines.prices_of(machine, market, run.word("region"))
    if not prices:
        return []
    span, days = machines.price_span(prices, market), machines.price_days(prices)
    catalog = f"{CATALOG}${span.low:.2f} to ${span.high:.2f} an hour, {market.replace('_', ' ') or 'any market'}, "
    catalog += f"now and in the past, by prices of {days}, for a {machine.name}"
    text = f"${span.value:.2f}/h per {machine.name} ({days[-10:]})"
    value = Value(span, run.claims_on("instance", "market", "region") | {catalog}, text)
    is_priced = any(run.figures(key) for key in PRICES)
    return [("list_price" if is_priced else "price_per_hour", value)]
