"""Texts that tell two keys at once: `32 × A100-40`, `4 × p4d.24xlarge`, `12/12`; or a key beside their own. Pure."""

import re
from collections.abc import Collection
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


def split(told: Told, fields: Collection[str]) -> Told:
    """What a section tells, each under its own key. fields: keys that the section has: no other is made up, so that a
    page is never told of one that it does not have."""
    for part in (_gpus_per_node, _interval, _recovered, _gpus, _machines):
        told = part(told, fields)
    return told


def _gpus_per_node(told: Told, fields: Collection[str]) -> Told:
    """`gpus: 8 per node`."""
    found = _found(_PER_NODE, told, "gpus") and "gpus_per_node" in fields
    return _renamed(told, "gpus", "gpus_per_node") if found and "gpus_per_node" not in told else told


def _interval(told: Told, fields: Collection[str]) -> Told:
    """`interval: every 500 steps`."""
    if not _found(_OF_STEPS, told, "interval") or "interval_steps" in told or "interval_steps" not in fields:
        return told
    steps = re.sub(r"^every\s+", "", told["interval"], flags=re.IGNORECASE)
    return _renamed({**told, "interval": steps}, "interval", "interval_steps")


def _recovered(told: Told, fields: Collection[str]) -> Told:
    """`recovered: 12/12`."""
    found = _found(_RECOVERED, told, "recovered") if "interruptions" in fields else None
    return _also({**told, "recovered": found[1]}, "interruptions", found[2]) if found else told


def _gpus(told: Told, fields: Collection[str]) -> Told:
    """`gpus: 32 × A100-40`."""
    found = _found(_GPUS, told, "gpus") if "gpus" in fields else None
    return {"gpu": found[2], **told, "gpus": found[1]} if found else told


def _machines(told: Told, fields: Collection[str]) -> Told:
    """`instance: 4 × p4d.24xlarge`, and `p4d.24xlarge x 4`. A link is of their type, however many there are."""
    found = _found(_INSTANCES, told, "instance")
    if found is None:
        return told
    told = {**told, "instance": found["type"] or found["first"]}
    return _also(told, "nodes", found["number"] or found["last"]) if "nodes" in fields else told


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
