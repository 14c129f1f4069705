"""From the claims on a run to values of quantities, and what the catalog has of its machines. Pure.

A quantity's name is `<scope>/<name>`, such as `runs.fast/throughput`; a claim's is `<scope>.<key>`.
"""

import re
from typing import NamedTuple

from convoy.audit import machines
from convoy.audit.claims import SETTINGS, PageClaims, RunClaims
from convoy.audit.machines import GpuKind
from convoy.audit.quantities.number import Figure, exactly, hull
from convoy.audit.quantities.units import parse
from convoy.audit.solver import CATALOG, Quantities, Value
from convoy.catalog.instances import Instance

PAGE = "page"
"""Scope of what stands at the top of the file."""

_HOUR = 3600.0

_PER_GPU = {"throughput": "throughput_per_gpu", "price_per_hour": "price_per_gpu_hour"}
_PER_NODE = {"throughput": "throughput_per_node", "total_price_per_hour": "price_per_hour",
             "memory_per_gpu": "memory_per_node", "gpu_memory": "memory_per_node"}  # fmt: skip
_RENAMED = {
    "cost_per_tokens": ("cost_per_token", 1.0),
    "cost_per_million_tokens": ("cost_per_token", 1e-6),
    "cost_per_billion_tokens": ("cost_per_token", 1e-9),
    "peak_tflops": ("peak", 1.0),
    "gpu_hours": ("gpu_hours", _HOUR),
    "bytes_per_parameter": ("", 1.0),  # of memory.py
}
"""Quantities of keys with another name, and the factor to them."""

_ENDINGS = {
    "cost_per_million_tokens": " per 1 M tokens",
    "cost_per_billion_tokens": " per 1 B tokens",
    "price_per_hour": " per node",
    "price_per_gpu_hour": " per GPU",
}
"""What a text does not say itself."""


class Run(NamedTuple):
    """A run with the settings of the page, and its machines."""

    scope: str
    claims: RunClaims
    owner: dict[str, str]
    """Scope in which each key stands, where that is another one."""
    kind: GpuKind | None
    machine: Instance | None
    adapters: bool = False
    """Most parameters are frozen, as with LoRA: of them there are neither gradients nor states."""

    def claim(self, key: str) -> str:
        return f"{self.owner.get(key, self.scope)}.{key}"

    def quantity(self, name: str) -> str:
        return f"{self.scope}/{name}"

    @property
    def gpus(self) -> float:
        """All GPUs; 0: the page does not say."""
        claims = self.claims
        if claims.gpus:
            return claims.gpus[0].value
        return claims.nodes[0].value * self.gpus_per_node if claims.nodes else 0.0

    @property
    def gpus_per_node(self) -> float:
        """GPUs of a machine; 0: nobody says."""
        if self.claims.gpus_per_node:
            return self.claims.gpus_per_node[0].value
        return self.machine.gpus if self.machine else 0.0

    def rests_on(self, *keys: str) -> frozenset[str]:
        """Those of the claims that the page makes."""
        return frozenset(self.claim(key) for key in keys if getattr(self.claims, key))


def machine_of(instance: str, run: Run | None) -> Instance | None:
    """The machine of that name, else the run's."""
    return machines.machine(instance) if instance else run.machine if run else None


def runs_of(page: PageClaims) -> list[Run]:
    """What stands at the top of the file, if anything of a run does, and each run below `runs`."""
    top = RunClaims.model_construct(**{name: getattr(page, name) for name in RunClaims.model_fields})
    at_top = [name for name in RunClaims.model_fields if getattr(page, name) != RunClaims.model_fields[name].default]
    runs = [_run(PAGE, top, {})] if at_top else []
    for at, run in enumerate(page.runs):
        # A run that says how many GPUs it has does not mean the page's number of machines.
        own = run.model_fields_set | (_SIZES if run.model_fields_set & _SIZES else set())
        taken = {name for name in at_top if name in SETTINGS and name not in own}
        claims = run.model_copy(update={name: getattr(page, name) for name in taken})
        runs.append(_run(f"runs.{run.id}" if run.id else f"runs[{at + 1}]", claims, dict.fromkeys(taken, PAGE)))
    saved = any(checkpoint.contents == "adapters" for checkpoint in page.checkpoints)
    return [
        run._replace(
            adapters=saved or bool(_LORA.search(f"{page.page} {run.claims.model} {run.claims.variant} {run.scope}"))
        )
        for run in runs
    ]


_LORA = re.compile(r"\bq?lora\b|\badapters?\b|\bpeft\b|\bfrozen\b", re.IGNORECASE)


_SIZES = {"gpus", "nodes"}


def _run(scope: str, claims: RunClaims, owner: dict[str, str]) -> Run:
    machine = machines.machine(claims.instance) if claims.instance else None
    kind = machines.gpu_kind(claims.gpu) if claims.gpu else None
    if kind is not None and machine is not None and machine.nvlink_gb_per_second:
        kind = kind._replace(chips=kind.chips[:1])  # of NVLink machines the GPUs are SXM modules
    if kind is None and not claims.gpu and machine is not None and machine.gpu is not None:
        kind = machines.gpu_kind(f"{machine.gpu.name} {round(machine.gpu.memory_mib / 1024)}GB")
        kind = kind._replace(chips=kind.chips[:1]) if kind and machine.nvlink_gb_per_second else kind
    return Run(scope, claims, owner, kind, machine)


def stated(run: Run) -> Quantities:
    """What the page states, and the catalog has of its machines."""
    values: Quantities = {}
    for key in RunClaims.model_fields:
        figures = getattr(run.claims, key)
        for at, figure in enumerate(figures if isinstance(figures, tuple) else ()):
            name, value = _value(run, key, figure, at if len(figures) > 1 else None)
            if name:
                values.setdefault(run.quantity(name), []).append(value)
    model = model_size(run.claims.model)
    exact = run.claims.parameters
    if model is not None and not (exact and not model.span.apart(exact[0].span)):  # its name tells no more
        value = Value(model.span, run.rests_on("model"), f"{model.text} parameters")
        values.setdefault(run.quantity("parameters"), []).append(value)
    for name, value in [*_of_catalog(run), *_prices(run)]:
        values.setdefault(run.quantity(name), []).append(value)
    return values


_SMALL = 0.2
"""So far, relative, is the name of a model with less than a billion parameters from them: much of it are embeddings,
which are counted or not."""


def model_size(model: str) -> Figure | None:
    """`7B` of `Llama-2-7B`; None for a mixture such as `8x7B`, `30B-A3B` or `17B-16E`, and where there is no size."""
    model = re.sub(r"(?<=\d)[\s-]?(b|m|tr)illion\b", lambda word: word[1][0], model, flags=re.IGNORECASE)
    match = re.search(r"(?<![\dx×.])(\d+(?:\.\d+)?)\s?([bBmMtT])(?![a-zA-Z0-9])", model)
    mixture = re.search(r"\d+\s*[x×]\s*\d|moe|-A\d+(?:\.\d+)?B|-\d+E\b", model, re.IGNORECASE)
    size = parse("size", f"{match[1]}{match[2].upper()}") if match and not mixture else None
    if size is None or size.value >= 1e9:
        return size
    return size.model_copy(update={"low": size.value * (1 - _SMALL), "high": size.value * (1 + _SMALL)})


def _value(run: Run, key: str, figure: Figure, at: int | None) -> tuple[str, Value]:
    name, factor = _RENAMED.get(key, (key, 1.0))
    if figure.per == "gpu":
        name = _PER_GPU.get(key, name)
    elif figure.per == "node":
        name = _PER_NODE.get(key, name)
    elif key == "global_batch":
        name = "batch_tokens" if figure.per == "tokens" else "batch"
    span = figure.span.scaled(factor)
    if key == "savings":
        name, span = "spot_share", span.complement()
    claim = run.claim(key) + (f"[{at + 1}]" if at is not None else "")
    return name, Value(span, frozenset({claim}), _text(key, figure))


_NOUNS = {
    "tokens": "tokens", "steps": "steps", "gpus": "GPUs", "nodes": "nodes", "gpus_per_node": "GPUs per node",
    "parameters": "parameters", "sequence_length": "tokens a sequence", "accumulation": "passes",
    "interruptions": "interruptions", "recovered": "recovered", "gpu_hours": "GPU-hours", "savings": "savings",
    "tflops_per_gpu": "TFLOP/s", "mfu": "MFU", "hfu": "HFU", "goodput": "goodput", "scaling_efficiency": "efficiency",
}  # fmt: skip
"""That a bare number is of."""


_NAMED = re.compile(r"hours|iterations?|updates|instances$", re.IGNORECASE)
"""What a text may call it by itself."""


def _text(key: str, figure: Figure) -> str:
    noun = "" if _NAMED.search(figure.text) else _NOUNS.get(key, "")
    ending = f" {noun}" if noun and noun.split()[0].lower()[:5] not in figure.text.lower().replace(" ", "-") else ""
    if key in ("price_per_hour", "price_per_gpu_hour") and (figure.per or "gpu" in figure.text.lower()):
        return figure.text
    return f"{figure.text}{ending or _ENDINGS.get(key, '')}"


def _of_catalog(run: Run) -> list[tuple[str, Value]]:
    """GPUs of a machine, their memory and peak, and the network."""
    values: list[tuple[str, Value]] = []
    kind, machine = run.kind, run.machine
    if machine is not None:
        of = run.rests_on("instance") | {f"{CATALOG}{machine.name}"}
        if machine.gpus:
            values.append(
                ("gpus_per_node", Value(exactly(machine.gpus), of, f"{machine.gpus} GPUs in a {machine.name}"))
            )
        network = machines.network(machine)
        text = f"{machine.network_gbps:g} Gbit/s = {network.value / 1e9:g} GB/s of a {machine.name}"
        values.append(("network", Value(network, of, text)))
    if kind is not None:
        of = run.rests_on("gpu" if run.claims.gpu else "instance") | {f"{CATALOG}{kind.name}"}
        peak = kind.peak(run.claims.precision)
        if peak is not None and not run.claims.peak_tflops:
            text = f"{peak.value / 1e12:g} TFLOP/s ({kind.name}, {run.claims.precision}, dense)"
            values.append(("peak", Value(peak, of, text)))
        if kind.memory is not None:
            high = kind.memory.high / 2**30
            text = f"the {high:.0f} GiB of {kind.name}"
            values.append(("gpu_memory", Value(kind.memory, of, text)))
    return values


_PRICES = ("price_per_hour", "price_per_gpu_hour", "total_price_per_hour")


def _prices(run: Run) -> list[tuple[str, Value]]:
    """Of the machine, or of any with such GPUs; the page's own price stands for the catalog's where it has one."""
    claims = run.claims
    if any(getattr(claims, key) for key in _PRICES):
        return []
    candidates, elsewhere = ([run.machine], False) if run.machine else ([], True)
    if not candidates and not claims.instance and run.kind is not None:
        candidates = machines.machines_with(run.kind)
    rows = [(each, machines.prices_of(each, claims.market, claims.region)) for each in candidates]
    priced = [(each, prices) for each, prices in rows if prices and each.gpus]
    if not priced:
        return []
    spans = [machines.price_span(prices, claims.market, elsewhere).scaled(1 / each.gpus) for each, prices in priced]
    names = ", ".join(each.name for each, _ in priced)
    days, span = machines.dated([row for _, prices in priced for row in prices]), hull(*spans)
    whole = span if elsewhere else span.scaled(priced[0][0].gpus)
    market = claims.market.replace("_", " ") or "any market"
    catalog = f"{CATALOG}${whole.low:.2f} to ${whole.high:.2f} an hour, {market}, now and in the past"
    catalog += f", by prices of {days}, {'for a GPU of' if elsewhere else 'for a'} {names}"
    of = run.rests_on("gpu" if elsewhere else "instance", "market", "region") | {catalog}
    if elsewhere:
        return [("price_per_gpu_hour", Value(span, of, f"${span.value:.2f}/h per GPU (as in {names}, {days[-10:]})"))]
    return [("price_per_hour", Value(whole, of, f"${whole.value:.2f}/h per {names} ({days[-10:]})"))]
