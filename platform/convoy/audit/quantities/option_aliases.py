"""Words of pages for the options that a key has: `ZeRO-3`, `FSx for Lustre`, `bf16 weights`. Pure."""

import re
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

_SYNONYMS = {
    "s3": "shared", "fsx": "shared", "fsxforlustre": "shared", "lustre": "shared", "efs": "shared", "nfs": "shared",
    "localnvme": "nvme", "localdisk": "nvme", "localdisks": "nvme", "localssd": "nvme", "ssd": "nvme", "disk": "nvme",
    "ram": "memory", "hostmemory": "memory", "cpumemory": "memory", "dram": "memory",
    "modelweights": "weights", "weightsonly": "weights", "modelonly": "weights", "model": "weights",
    "weightsandoptimizer": "training_state", "modelandoptimizer": "training_state", "fullstate": "training_state",
    "weightsoptimizer": "training_state", "fulltrainingstate": "training_state", "trainingstates": "training_state",
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float8": "fp8",
    "fsdp2": "fsdp", "fullysharded": "fsdp", "fullshard": "fsdp", "hybridshard": "hsdp", "dataparallel": "ddp",
    "zerostage1": "zero1", "zerostage2": "zero2", "zerostage3": "zero3", "deepspeedzero1": "zero1",
    "deepspeedzero2": "zero2", "deepspeedzero3": "zero3", "deepspeedzerostage1": "zero1",
    "deepspeedzerostage2": "zero2", "deepspeedzerostage3": "zero3", "3dparallelism": "3d",
    "bidirectional": "both", "unidirectional": "one", "off": "none",
}  # fmt: skip
"""What pages call the options, in letters and digits alone."""

_SAID: dict[str, tuple[tuple[str, str], ...]] = {
    "contents": (
        (r"lora|adapter", "adapters"),
        (r"weights?[ -]only|(?:no|without|excl\w*) (?:the )?optim", "weights"),
        (r"optim|state|full|adam|resum", "training_state"),
        (r"weight|model|param", "weights"),
    ),
    "to": (
        (r"\bs3\b|fsx|lustre|nfs|efs|gpfs|weka|ceph|shared|network|remote|object|bucket|cloud", "shared"),
        (r"nvme|ssd|disk|scratch|local", "nvme"),
        (r"memory|\bram\b|cpu|host", "memory"),
    ),
    "strategy": (
        (r"tensor|pipeline|megatron|\b[34]d\b|\b[tp]p ?=?\d*\b", "3d"),
        (r"hybrid|hsdp", "hsdp"),
        (r"zero.{0,7}1|distributed.optimi[sz]er", "zero1"),
        (r"zero.{0,7}2|grad.op", "zero2"),
        (r"zero.{0,7}3|fsdp|full.?shard|fully.sharded", "fsdp"),
        (r"\bddp\b|data.parallel|no.?shard", "ddp"),
    ),
    "precision": (
        (r"fp8|float8|e4m3", "fp8"),
        (r"bf16|bfloat16", "bf16"),
        (r"fp16|float16", "fp16"),
        (r"tf32", "tf32"),
        (r"fp32|float32", "fp32"),
    ),
    "recomputation": (
        (r"select", "selective"),
        (r"^(?:no|off|false|none|without|disabled)\b", "none"),
        (r"full", "full"),
        (r"^(?:yes|on|true|enabled)\b", ""),
    ),
    "market": (
        (r"spot|preempt", "spot"),
        (r"capacity.block", "capacity_block"),
        (r"reserv|savings.plan|commit", "reserved"),
        (r"on.?demand", "on_demand"),
    ),
}
"""Of longer texts the first of these that is in them tells the option."""


def option(key: str, value: Any, field: FieldInfo | None) -> Any:
    """`ZeRO-3` is zero3, `On-demand` on_demand, and `FSx for Lustre` shared; what is none of them is left as it is."""
    if field is None or get_origin(field.annotation) is not Literal or not isinstance(value, str):
        return value
    named = {_letters(each): each for each in get_args(field.annotation) if each}
    word = _letters(value)
    found = named.get(word) or named.get(_letters(_SYNONYMS.get(word, "")))
    if found is not None or not value.strip():
        return found or value
    return next((told for words, told in _SAID.get(key, ()) if re.search(words, value.lower())), value)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
