"""What a page says, as a file of claims has it: one table of keys. docs/reference/claims.md describes each of them.

Every figure is text with its unit, or a number in the default unit of its key, or a list of such where the page says it
more than once.
"""

import itertools
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from convoy.audit.quantities.number import Figure
from convoy.audit.quantities.units import parse_figure
from convoy.config.errors import ConfigError, name_hint, yaml_value
from convoy.config.yaml_text import YamlError, parse_yaml_as_text

Figures = tuple[Figure, ...]
Entry = Figures | str


def _kind_by_key(keys_by_kind: Mapping[str, str]) -> dict[str, str]:
    return {key: kind for kind, keys in keys_by_kind.items() for key in keys.split()}


KEYS = {
    "runs": _kind_by_key({
        "text": "id variant model gpu instance region relative_to",
        "option": "precision recomputation strategy market offload",
        "size": "parameters active_parameters",
        "exact": "layers width sequence_length gpus nodes gpus_per_node micro_batch accumulation model_parallel "
                 "interruptions recovered",
        "number": "bytes_per_parameter",
        "batch": "global_batch",
        "count": "steps tokens",
        "time s": "step_time recovery_time",
        "time h": "time mtbf",
        "rate": "throughput throughput_per_gpu",
        "samples": "samples_per_second",
        "share": "mfu hfu savings scaling_efficiency goodput recovery_rate",
        "flops": "tflops_per_gpu peak_tflops",
        "flop": "compute",
        "gpu_hours": "gpu_hours",
        "price": "price_per_hour price_per_gpu_hour total_price_per_hour spot_price on_demand_price",
        "money": "cost",
        "unit_price": "cost_per_tokens",
        "ratio": "speedup",
        "bytes GB": "gpu_memory memory_per_gpu",
    }),
    "checkpoints": _kind_by_key({
        "text": "id run model instance",
        "option": "contents to",
        "size": "parameters",
        "bytes GB": "size",
        "exact": "nodes",
        "time s": "save_time load_time stall interval",
        "bandwidth GB/s": "bandwidth",
        "count": "interval_steps",
        "share": "overhead",
    }),
    "collectives": _kind_by_key({
        "text": "id run instance",
        "option": "operation",
        "message GB": "size",
        "exact": "ranks nodes gpus_per_node",
        "time us": "time",
        "bandwidth GB/s": "bandwidth algorithm_bandwidth bus_bandwidth",
    }),
    "links": _kind_by_key({
        "text": "id run instance",
        "option": "scope",
        "bandwidth GB/s": "bandwidth",
        "exact_bandwidth GB/s": "peak",
        "share": "utilisation",
    }),
}  # fmt: skip
"""By section of the file, its keys with the kind of what they say, and the unit of a number alone."""

OPTIONS = {
    "precision": ("bf16", "fp16", "fp8", "tf32", "fp32"),
    "recomputation": ("", "none", "selective", "full"),
    "strategy": ("", "fsdp", "zero3", "zero2", "zero1", "hsdp", "ddp", "3d"),
    "market": ("", "on_demand", "spot", "capacity_block", "reserved"),
    "offload": ("false", "true"),
    "contents": ("", "weights", "training_state", "adapters"),
    "to": ("shared", "nvme", "memory"),
    "operation": ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send_recv"),
    "scope": ("inter_node", "intra_node"),
}
"""What a key of a fixed choice may say; the first is what holds where the page does not say."""

PRICES = ("price_per_hour", "price_per_gpu_hour", "total_price_per_hour")

IDENTITY = frozenset(
    {
        "model", "parameters", "active_parameters", "layers", "width", "sequence_length", "precision", "recomputation",
        "strategy", "offload", "gpu", "gpus", "nodes", "gpus_per_node", "instance", "global_batch", "micro_batch",
        "accumulation", "model_parallel", "variant",
    }
)  # fmt: skip
"""Settings that decide how fast a run is."""

SETTINGS = IDENTITY | {
    "price_per_hour", "price_per_gpu_hour", "spot_price", "on_demand_price", "market", "region", "tokens", "gpu_memory",
    "peak_tflops", "bytes_per_parameter",
}  # fmt: skip
"""Keys that runs inherit from the top of the file; every other key is an outcome."""

_NOT_CHECKED = "it is not checked any more: leave it out"
_PER_TOKENS = "write it as cost_per_tokens, e.g. $0.89 per 1 B tokens"
_RETIRED = {
    **dict.fromkeys(("date", "price_date", "shares", "power", "energy", "tokens_per_joule"), _NOT_CHECKED),
    **dict.fromkeys(("cost_per_million_tokens", "cost_per_billion_tokens"), _PER_TOKENS),
    "directions": "write bandwidth and peak of one direction",
    "hours": "write it as time, e.g. 57 h",
    "days": "write it as time, e.g. 2.4 days",
    "tokens_per_day": "write it as throughput, e.g. 62B tokens/day",
}
"""Keys of earlier versions, and what becomes of their claims."""

_COUNTED = re.compile(
    r"^\s*(?P<number>[\d,]+)(?:\s*[x×*]\s*|\s+(?!x\b))(?P<what>[a-z][\w. -]*)(?:\s+\(.*\))?$|"
    r"^\s*(?P<first>[a-z][\w.-]*)\s*[x×*]\s*(?P<last>[\d,]+)$",
    re.IGNORECASE,
)
"""`32 × A100-40`, `p4d.24xlarge x 4`."""


class Claims(NamedTuple):
    """Of one run, checkpoint, collective or link: what the page says under each key."""

    section: str
    entries: Mapping[str, Entry]

    def figures(self, key: str) -> Figures:
        entry = self.entries.get(key, ())
        return entry if isinstance(entry, tuple) else ()

    def word(self, key: str) -> str:
        """The option that holds where the page does not say."""
        return str(self.entries.get(key) or OPTIONS.get(key, ("",))[0])


class PageClaims(NamedTuple):
    """The whole file. Keys of a run at the top are a run by itself, whose settings those below `runs` share."""

    page: str = ""
    top: Claims = Claims("runs", {})
    runs: tuple[Claims, ...] = ()
    parts: tuple[Claims, ...] = ()
    """Checkpoints, collectives and links."""


def read_claims(text: str, place: str) -> PageClaims:
    """What the file says. place: its name, for the error. Raises ConfigError with one line."""
    try:
        # Every scalar stays text: 57.0 has a digit more than 57.
        tree = parse_yaml_as_text(text)
    except (YamlError, yaml.YAMLError) as error:
        hint = "; text with a colon in it needs quotes" if "mapping values" in str(error) else ""
        raise ConfigError(f"{place} is not YAML: {error}{hint}") from None
    if not isinstance(tree, dict) or not tree:
        raise ConfigError(f"{place}: must be a mapping of keys to values, not: {yaml_value(tree)}")
    try:
        return _read_page(tree)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None


def _read_page(tree: dict[str, Any]) -> PageClaims:
    top = {key: value for key, value in tree.items() if key not in ("page", *KEYS)}
    claims = read_entries("runs", top, "")
    sections = {section: _read_section(section, tree.get(section, [])) for section in KEYS}
    runs = sections.pop("runs")
    parts = tuple(each for items in sections.values() for each in items)
    ids = [run.word("id") for run in (claims, *runs) if run.word("id")]
    for each, key in [*((run, "relative_to") for run in (claims, *runs)), *((part, "run") for part in parts)]:
        name = each.word(key)
        if name and name not in ids:
            raise ValueError(f"{each.section}.{key} = {name}: no run has this id; {name_hint(name, ids)}")
    return PageClaims(str(tree.get("page", "")), claims, runs, parts)


def _read_section(section: str, items: Any) -> tuple[Claims, ...]:
    """As a reader counts: the first of `runs` is runs[1]."""
    if not isinstance(items, list) or not all(isinstance(each, dict) for each in items):
        raise ValueError(f"{section} = {yaml_value(items)}: must be a list of mappings")
    claims = tuple(read_entries(section, each, f"{section}[{at + 1}].") for at, each in enumerate(items))
    own = [each.word("id") for each in claims if each.word("id")]
    for name in own:
        if own.count(name) > 1:
            raise ValueError(f"{section}.id = {name}: appears twice")
    return claims


def read_entries(section: str, tree: Mapping[str, Any], prefix: str) -> Claims:
    """where: begins the names of its keys in errors. Raises ValueError."""
    keys, own = KEYS[section], {}
    for name, value in tree.items():  # a misspelled key is reported first
        key = re.sub(r"[\s-]+", "_", name.strip().lower())
        if key not in keys:
            if re.match(r"\d{3}(?!\d)", name) and not value:  # {gpus: 16,384}
                raise ValueError(f"{prefix.rstrip('.')}: a figure with a comma needs quotes within {{…}}: …,{name}")
            raise ValueError(f"{prefix}{name} = {yaml_value(value)}: unknown key; {_key_hint(key, section, prefix)}")
        if key in own:
            raise ValueError(f"{prefix}{name} = {yaml_value(value)}: {key} also appears; give one key a list instead")
        own[key] = value
    own = _split_count_and_name(_split_count_and_name(own, keys, "gpus", "gpu"), keys, "instance", "instance")
    return Claims(section, {key: _read_entry(keys[key], key, value, prefix) for key, value in own.items()})


def _key_hint(key: str, section: str, where: str) -> str:
    """Where it is a key, or the nearest one."""
    elsewhere = [name for name, keys in KEYS.items() if key in keys and name != section]
    if key in _RETIRED or not elsewhere:
        return _RETIRED.get(key) or name_hint(key, KEYS[section])
    return f"it is a key of {' and '.join(elsewhere)}" + (f", not of {section}" if where else "")


def _split_count_and_name(entries: dict[str, Any], keys: Mapping[str, str], key: str, name_key: str) -> dict[str, Any]:
    """A text that fills two keys; a key that the section does not have is not made up."""
    value, number = entries.get(key), "gpus" if key == "gpus" else "nodes"
    match = _COUNTED.match(value) if isinstance(value, str) and name_key in keys else None
    count, name = (match["number"] or match["last"], match["what"] or match["first"]) if match else ("", "")
    if not name or re.match(r"(?:gpu|node|machine|instance)s?\b", name, re.IGNORECASE):
        return entries
    if key == "gpus":
        return {"gpu": name, **entries, "gpus": count}
    stated = entries.get(number, [])
    stated = stated if isinstance(stated, list) else [stated]
    nodes = {number: stated if count in stated else [*stated, count]} if number in keys else {}
    return {**entries, name_key: name, **nodes}  # a link is of such machines, however many there are


def _read_entry(kind: str, key: str, value: Any, prefix: str) -> Entry:
    entry = f"{prefix}{key} = {yaml_value(value)}"
    if kind == "text":
        if not isinstance(value, str):
            raise ValueError(f"{entry}: must be text")
        return value
    if kind == "option":
        plain = {_letters_and_digits(each): each for each in OPTIONS[key]}
        if _letters_and_digits(str(value)) not in plain:
            *others, last = [f"'{each}'" for each in OPTIONS[key] if each]
            raise ValueError(f"{entry}: must be {', '.join(others)} or {last}")
        return plain[_letters_and_digits(str(value))]
    texts = value if isinstance(value, list) else [value]
    for first, second in itertools.pairwise(map(str, texts)):
        if re.fullmatch(r"[^\d]*\d{1,3}", first) and re.match(r"\d{3}(?!\d)", second):
            raise ValueError(f"{entry}: a figure with a comma needs quotes in a list, '{first},{second}'")
    return tuple(_read_figure(kind, each, f"{prefix}{key} = {yaml_value(each)}") for each in texts)


def _letters_and_digits(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())


def _read_figure(kind: str, value: Any, label: str) -> Figure:
    text = value.strip() if isinstance(value, str) else ""
    if not text:
        raise ValueError(f"{label}: must be a figure, e.g. 57 h")
    name, _, unit = kind.partition(" ")
    is_bare = unit and re.fullmatch(r"[\d.,_eE+-]+", text)
    try:
        return parse_figure(name, f"{text} {unit}" if is_bare else text)
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None
