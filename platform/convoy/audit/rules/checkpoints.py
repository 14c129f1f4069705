"""Bytes and seconds of checkpoints. Pure.

Per parameter: weights have 2 (bf16) or 4 bytes (fp32); with AdamW's two averages 12 (all fp32), 14 (a bf16 copy more),
16 (the gradients too); 6 where all of it is bf16.
"""

from typing import NamedTuple

from convoy.audit import machines
from convoy.audit.claims import CheckpointClaims
from convoy.audit.facts import Run, machine_of, model_size
from convoy.audit.quantities.number import Figure, Span, exactly
from convoy.audit.solver import CATALOG, Bound, Law, Quantities, Value

_CONTENTS = {
    "weights": (Span(2.0, 2.0, 4.0), "2 to 4 bytes of weights"),
    "training_state": (Span(6.0, 12.0, 16.0), "6 to 16 bytes of weights and optimizer"),
    "": (Span(2.0, 12.0, 16.0), "2 (weights) to 16 bytes (all states)"),
}

_DISK = 7.9e9
"""Bytes a second of one NVMe disk at most: four lanes of PCIe 4.0."""

_HOST = 64e9
"""Bytes a second of one GPU to host memory at most: 16 lanes of PCIe 5.0."""


class Checkpoint(NamedTuple):
    """A checkpoint and the run that it is of."""

    scope: str
    claims: CheckpointClaims
    run: Run | None

    def quantity(self, name: str) -> str:
        return f"{self.scope}/{name}"

    def rests_on(self, *keys: str) -> frozenset[str]:
        return frozenset(f"{self.scope}.{key}" for key in keys if getattr(self.claims, key))


_FIGURES = (
    "size", "save_time", "load_time", "stall", "interval", "interval_steps", "overhead", "parameters", "bandwidth",
    "nodes",
)  # fmt: skip

_SUMS = ("size", "bandwidth")
"""That a page may state of one GPU or machine."""


def stated(checkpoint: Checkpoint) -> Quantities:
    """What the page states, and what the catalog has of links and disks."""
    claims, values = checkpoint.claims, Quantities()
    for key in _FIGURES:
        for at, figure in enumerate(getattr(claims, key)):
            name = f"{key}_per_{figure.per}" if figure.per else key
            values.setdefault(checkpoint.quantity(name), []).append(_value(checkpoint, key, figure, at))
    named = model_size(claims.model)
    if named and not claims.parameters:
        value = Value(named.span, checkpoint.rests_on("model"), f"{named.text} parameters")
        values[checkpoint.quantity("parameters")] = [value]
    limit = _limit(checkpoint)
    if limit is not None:
        values[checkpoint.quantity("link_per_node")] = [limit]
    return values


def laws(checkpoint: Checkpoint) -> list[Law]:
    q, claims, run = checkpoint.quantity, checkpoint.claims, checkpoint.run
    paused = "stall" if claims.stall else "save_time"
    implied = [
        Law(((q("size"), 1), (q("bandwidth"), -1), (q("save_time"), -1))),
        Law(((q("size"), 1), (q("load_bandwidth"), -1), (q("load_time"), -1))),
        Law(((q("size"), 1), (q("size_per_node"), -1), (q("nodes"), -1))),
        Law(((q("bandwidth"), 1), (q("bandwidth_per_node"), -1), (q("nodes"), -1))),
        Law(((q("link"), 1), (q("link_per_node"), -1), (q("nodes"), -1))),
        # Of the time between two saves, or of that and the save.
        Law(((q("overhead"), 1), (q("interval"), 1), (q(paused), -1)), _overhead(claims, paused)),
    ]
    adapters = claims.contents == "adapters" or (run is not None and run.adapters and not claims.contents)
    if not adapters:  # of whose size nothing is known
        each, words = _CONTENTS[claims.contents]
        implied.append(Law(((q("size"), 1), (q("parameters"), -1)), each, words, checkpoint.rests_on("contents")))
    if run is not None:
        implied.append(Law(((q("interval"), 1), (q("interval_steps"), -1), (run.quantity("step_time"), -1))))
        implied += [Law(((q(key), 1), (q(f"{key}_per_gpu"), -1), (run.quantity("gpus"), -1))) for key in _SUMS]
        if not claims.parameters and not model_size(claims.model):
            implied.append(Law(((q("parameters"), 1), (run.quantity("parameters"), -1))))
        if not claims.nodes:
            implied.append(Law(((q("nodes"), 1), (run.quantity("nodes"), -1))))
    return implied


def bounds(checkpoint: Checkpoint) -> list[Bound]:
    q, to = checkpoint.quantity, checkpoint.claims.to
    why = {"shared": "the network of the machines is no faster", "nvme": "their disks are no faster",
           "memory": "the way to host memory is no faster"}[to]  # fmt: skip
    return [
        Bound(q("overhead"), exactly(1.0), "impossible", "a part of the time is at most all of it"),
        Bound(q("bandwidth"), q("link"), "impossible", why),
        Bound(q("load_bandwidth"), q("link"), "impossible", why),
    ]


_AND_PAUSE = Span(0.9, 1.0, 1.0)
"""Of steps between two saves over that and a save, which is hardly longer than a tenth of it."""


def _overhead(claims: CheckpointClaims, paused: str) -> Span:
    pause, interval = getattr(claims, paused), claims.interval
    if pause and claims.interval_steps and not interval:
        return _AND_PAUSE
    if not pause or not interval or pause[0].high >= interval[0].low:
        return exactly(1.0)
    return Span(interval[0].value / (interval[0].value + pause[0].value), 1.0, 1.0)


def _limit(checkpoint: Checkpoint) -> Value | None:
    """Bytes a second of one machine to where the checkpoint is saved."""
    claims, run = checkpoint.claims, checkpoint.run
    machine = machine_of(claims.instance, run)
    if machine is None:
        return None
    of = checkpoint.rests_on("instance") or (run.rests_on("instance") if run else frozenset())
    of |= checkpoint.rests_on("to") if claims.to != "shared" else frozenset()
    if claims.to == "shared":
        span, text = machines.network(machine), f"{machine.network_gbps:g} Gbit/s"
    elif claims.to == "nvme":
        span, text = exactly(machine.nvme_count * _DISK), f"{machine.nvme_count} disks of at most {_DISK / 1e9:g} GB/s"
    else:
        span, text = exactly(machine.gpus * _HOST), f"{machine.gpus} GPUs of at most {_HOST / 1e9:g} GB/s"
    if not span.value:
        return None
    return Value(span, of | {f"{CATALOG}{machine.name}"}, f"{span.value / 1e9:g} GB/s of a {machine.name} ({text})")


def _value(checkpoint: Checkpoint, key: str, figure: Figure, at: int) -> Value:
    several = len(getattr(checkpoint.claims, key)) > 1
    claim = f"{checkpoint.scope}.{key}" + (f"[{at + 1}]" if several else "")
    nouns = {"nodes": " nodes", "interval_steps": " steps", "parameters": " parameters", "overhead": " overhead"}
    noun = "" if nouns.get(key, "").strip()[:4] in figure.text else nouns[key]
    return Value(figure.span, frozenset({claim}), f"{figure.text}{noun}")
