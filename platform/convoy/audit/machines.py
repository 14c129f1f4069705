"""What the catalog has of the GPUs and machines that a page names. Pure."""

import math
import re
from datetime import date
from typing import NamedTuple

from convoy.audit.quantities.number import Span, exactly
from convoy.catalog import load_table
from convoy.catalog.gpus import GpuPeak
from convoy.catalog.instances import Instance, instance, instance_names
from convoy.catalog.prices import MARKETS, SHIPPED, Price

MIB = 2**20

_MEMORY = 0.08
"""A GPU with 40960 MiB is sold as one with 40 GB."""

_DEARER, _CHEAPER = 1.8, 0.5
"""Prices were up to so many times those of the catalog before AWS's cuts of June 2025. On spot and elsewhere they are
lower, and on demand too: by Savings Plans and private rates."""


class GpuKind(NamedTuple):
    """A kind of GPU, as exactly as it was named."""

    name: str
    """Of the family: `A100`."""
    chips: tuple[GpuPeak, ...]
    """Form factors that it may have; the most usual one first."""
    memory: Span | None
    """Bytes."""

    def peak(self, precision: str) -> Span | None:
        """FLOP/s of one GPU."""
        name = "bf16" if precision == "fp16" else precision
        rates = [float(chip.tflops[name]) * 1e12 for chip in self.chips if name in chip.tflops]
        return Span(min(rates), rates[0], max(rates)) if rates else None


def gpu_kind(text: str) -> GpuKind | None:
    """`A100-40`, `NVIDIA H100 80GB SXM`; None for what the catalog does not have."""
    plain = re.sub(r"[-_/]", " ", text.upper()).replace("NVIDIA", " ")
    chips = [GpuPeak(**entry) for entry in load_table("gpus")["gpus"]]
    families = sorted({chip.chip.split()[0] for chip in chips}, key=len, reverse=True)
    family = next((name for name in families if re.search(rf"(?<![A-Z0-9]){name}(?![0-9])", plain)), None)
    if family is None or re.search(r"\bMIG\b", plain):
        return None
    of_family = [chip for chip in chips if chip.chip.split()[0] == family]
    form = [chip for chip in of_family if " " in chip.chip and chip.chip.split()[1].upper() in plain]
    size = re.search(rf"{family}[A-Z ]*?(\d{{2,3}})\s*(?:GI?B?)?\b", plain) or re.search(
        r"\b(\d{2,3})\s*GI?B?\b", plain
    )
    return GpuKind(family, tuple(form or of_family), _memory(family, int(size[1]) if size else None))


def _memory(family: str, gigabytes: int | None) -> Span | None:
    sizes = [
        entry.gpu.memory_mib * MIB
        for entry in map(instance, instance_names())
        if entry.gpu is not None and entry.gpu.name == family
    ]
    if gigabytes is not None:
        near = [size for size in sizes if abs(size / 2**30 - gigabytes) <= _MEMORY * gigabytes]
        return Span(gigabytes * 1e9, gigabytes * 1e9, max([gigabytes * 2.0**30, *near]))
    return Span(min(sizes), max(sizes), max(sizes)) if sizes else None


def find_machine(text: str) -> Instance | None:
    """`p4d.24xlarge`, or `p4d` for the largest of its family; None for what the catalog does not have."""
    name = re.sub(r"^aws\s+|^ml\.|\s+\(.*\)$", "", text.strip().lower())
    family = [each for each in instance_names() if each.split(".")[0] == name.split(".")[0]]
    if name in family:
        return instance(name)
    if "." in name or not family:
        return None
    return max(map(instance, family), key=lambda each: each.vcpus)


def prices_of(entry: Instance, market: str, region: str) -> list[Price]:
    """All that the catalog has, of one market and region where they are named."""
    markets = [each for each in MARKETS if each.startswith(market)]
    pairs = [(each, place) for each in markets for place in SHIPPED.regions(entry.name, each) if region in ("", place)]
    return [price for each, place in pairs if (price := SHIPPED.price(entry.name, each, place)) is not None]


def price_span(prices: list[Price], market: str) -> Span:
    """USD an hour: from the cheapest to the dearest, and what they were or are by contract. The value is on demand in
    the cheapest region, or the cheapest there is."""
    own = [each for each in prices if each.market == (market or "on_demand")] or prices
    low = min(each.low_usd_per_hour for each in prices) * _CHEAPER
    return Span(low, min(each.usd_per_hour for each in own), max(each.high_usd_per_hour for each in prices) * _DEARER)


def price_days(prices: list[Price]) -> str:
    """When the prices were read."""
    days: list[date] = sorted({each.date for each in prices})
    return f"{days[0]}" if days[0] == days[-1] else f"{days[0]} to {days[-1]}"


def network_bytes_per_second(entry: Instance) -> Span:
    """Bytes a second between machines, of one of them, per direction."""
    return exactly(entry.network_gbps * 1e9 / 8)


def nvlink_bytes_per_second(entry: Instance) -> Span | None:
    """Bytes a second of one GPU within a machine: per direction, or both together as data sheets have it."""
    one = entry.nvlink_gb_per_second * 1e9
    return Span(one, math.sqrt(2) * one, 2 * one) if one else None
