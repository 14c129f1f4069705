"""Which runs may be compared with each other: those of the same hardware, versions and configuration."""

from collections.abc import Mapping

from convoy.benchmark.results.case import Case
from convoy.config.json_text import short_hash

MAJOR_VERSIONS = ("python", "torch", "cuda", "nccl")
"""Software of which another version may have another speed; Convoy's own is what a history shows."""

MEASURED = ("accelerate", "deepspeed", "flax", "horovod", "jax", "mlx", "transformers")
"""The same, of software that has cases of its own."""


def fingerprint(case: Case) -> str:
    """16 hex digits, equal for cases that may be compared: what is measured, where, and with which software."""
    compared = {
        "suite": case.suite,
        "name": case.name,
        "model": case.model,
        "config": _compared_config(case.config),
        **{key: getattr(case.hardware, key) for key in _HARDWARE},
        "versions": _versions(case),
        "environment": case.provenance.environment,
        **({"lab": case.lab} if case.lab else {}),
    }
    return short_hash(compared)


def differences(first: Case, second: Case) -> list[str]:
    """Why two cases may not be compared, one line each; empty: they may."""
    lines = []
    pairs: list[tuple[str, object, object]] = [
        ("suite", first.suite, second.suite),
        ("case", first.name, second.name),
        ("model", first.model, second.model),
        ("lab", first.lab or "none", second.lab or "none"),
        *((f"hardware.{key}", getattr(first.hardware, key), getattr(second.hardware, key)) for key in _HARDWARE),
        *_paired_values("versions", _versions(first), _versions(second)),
        *_paired_values("environment", first.provenance.environment, second.provenance.environment),
        *_paired_values("config", _flatten(_compared_config(first.config)), _flatten(_compared_config(second.config))),
    ]
    for what, one, other in pairs:
        if one != other:
            lines.append(f"{what}: {one} and {other}")
    if not lines and fingerprint(first) != fingerprint(second):
        lines.append("config: the same values are written in two ways, as by two versions of Convoy")
    return lines


def undeclared_differences(first: Case, second: Case) -> list[str]:
    """Differences between two cases whose gangs were to differ only in the variables that both declare."""
    allowed = ("case:", *(f"environment.{name}:" for name in {*first.varied} & {*second.varied}))
    return [line for line in differences(first, second) if not line.startswith(allowed)]


def _versions(case: Case) -> dict[str, str | None]:
    versions = case.provenance.versions
    names = (*MAJOR_VERSIONS, *(name for name in MEASURED if name in versions))
    return {name: versions.get(name) for name in names}


def _compared_config(config: Mapping[str, object]) -> dict[str, object]:
    """Without the root, what a machine cost that day and the campaign that is computed, which change no measurement."""
    compared = {key: value for key, value in config.items() if key not in ("root", "campaign")}
    cluster = compared.get("cluster")
    if isinstance(cluster, dict):
        compared["cluster"] = {key: value for key, value in cluster.items() if key != "price"}
    return compared


_HARDWARE = ("device", "nodes", "ranks", "jobs", "threads", "cores", "pinned", "instance_type")


def _paired_values(
    what: str, first: Mapping[str, object], second: Mapping[str, object]
) -> list[tuple[str, object, object]]:
    return [(f"{what}.{key}", first.get(key), second.get(key)) for key in sorted({*first, *second})]


def _flatten(values: object, prefix: str = "") -> dict[str, object]:
    """Nested keys as `a.b.c`."""
    if not isinstance(values, dict):
        return {prefix: values}
    flat: dict[str, object] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat
