"""Texts that tell two keys at once: `32 × A100-40`, `4 × p4d.24xlarge`, `12/12`; or a key beside their own. Pure."""

import re
from typing import Any

Told = dict[str, Any]

_GPUS = re.compile(
    r"^\s*((?:up to|over|more than|at least|about|around|~|≈|[<>])?\s*[\d,]+(?:\s*(?:-|–|to)\s*[\d,]+)?(?:\s*k\b)?)"  # noqa: RUF001
    r"\s*[x×*]?\s*(?!(?:k|gpus?|nodes?|machines?|instances?|hosts?)\b|x\s*\d)((?:\d+ ?GI?B )?[a-z].*)$",
    re.IGNORECASE,
)

_PER_NODE = re.compile(r"^\s*\d+[a-z ]*(?:/|\bper\b)\s*(?:node|machine|instance|host)\s*$", re.IGNORECASE)

_OF_STEPS = re.compile(r"\d\s*k?\s*(?:steps?|iterations?|iters?|updates?)\s*$", re.IGNORECASE)

_RECOVERED = re.compile(r"^\s*([\d,]+)\s*(?:/|of|out of)\s*([\d,]+)\s*$", re.IGNORECASE)

_INSTANCES = re.compile(
    r"^\s*(?P<number>[\d,]+)\s*[x×*]?\s*(?P<type>[a-z][\w.-]*)(?: instances?| nodes?)?(?:\s+\(.*\))?$|"
    r"^\s*(?P<first>[a-z][\w.-]*)\s*[x×*]\s*(?P<last>[\d,]+)(?:\s+\(.*\))?$",
    re.IGNORECASE,
)


def split(told: Told) -> Told:
    """What a section tells, each under its own key."""
    for part in (_gpus_per_node, _interval, _recovered, _gpus, _machines):
        told = part(told)
    return told


def _gpus_per_node(told: Told) -> Told:
    """`gpus: 8 per node`."""
    found = _found(_PER_NODE, told, "gpus")
    return _renamed(told, "gpus", "gpus_per_node") if found and "gpus_per_node" not in told else told


def _interval(told: Told) -> Told:
    """`interval: every 500 steps`."""
    if not _found(_OF_STEPS, told, "interval") or "interval_steps" in told:
        return told
    steps = re.sub(r"^every\s+", "", told["interval"], flags=re.IGNORECASE)
    return _renamed({**told, "interval": steps}, "interval", "interval_steps")


def _recovered(told: Told) -> Told:
    """`recovered: 12/12`."""
    found = _found(_RECOVERED, told, "recovered")
    return _also({**told, "recovered": found[1]}, "interruptions", found[2]) if found else told


def _gpus(told: Told) -> Told:
    """`gpus: 32 × A100-40`."""
    found = _found(_GPUS, told, "gpus")
    return {"gpu": found[2], **told, "gpus": found[1]} if found else told


def _machines(told: Told) -> Told:
    """`instance: 4 × p4d.24xlarge`, and `p4d.24xlarge x 4`."""
    found = _found(_INSTANCES, told, "instance")
    if found is None:
        return told
    return _also({**told, "instance": found["type"] or found["first"]}, "nodes", found["number"] or found["last"])


def _found(words: re.Pattern[str], told: Told, key: str) -> re.Match[str] | None:
    value = told.get(key)
    return words.search(value) if isinstance(value, str) else None


def _renamed(told: Told, old: str, new: str) -> Told:
    return {new if key == old else key: value for key, value in told.items()}


def _also(told: Told, key: str, value: str) -> Told:
    """Told under the key, too: what stands there already may say otherwise."""
    there = told.get(key, [])
    there = there if isinstance(there, list) else [there]
    return {**told, key: there if value in map(str, there) else [*there, value]}
