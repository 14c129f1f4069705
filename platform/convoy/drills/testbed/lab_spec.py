"""The hosts and links of a lab, as text: `4 hosts, 400mbit, loss 0.1%, delay 5ms`. Pure."""

import re
from typing import Any, Literal, NamedTuple

from convoy.config.errors import ConfigError

Direction = Literal["sends", "receives"]

CONGESTION_CONTROLS = ("reno", "cubic", "bbr")

MOST_HOSTS, MOST_RAILS = 16, 8

DEFAULT_CONGESTION = "reno"
"""Of which the others are variations, so that labs of several machines are equal."""

LEAST_DELAY_MS, MOST_DELAY_MS = 0.1, 1000.0
"""The relay is late by some tenths of a millisecond; TCP begins to send again after a second."""

_MEGABITS = {"kbit": 1e-3, "mbit": 1.0, "gbit": 1e3}

_ALLOWED = (
    "N hosts, a rate such as 400mbit or 1gbit, loss P%, delay Tms, N rails, trunk RATE, host K sends RATE, "
    "host K receives RATE, reno, cubic or bbr"
)


class SlowPort(NamedTuple):
    """A host whose port is slower than the others in one direction."""

    host: int
    direction: Direction
    megabits: float
    """Per second."""


class LabSpec(NamedTuple):
    """Hosts that reach each other over a switch; rates are in 10^6 bits per second, of each port in each direction."""

    hosts: int = 2
    megabits: float | None = None
    """None: as fast as the kernel is."""
    loss_percent: float = 0.0
    """Of the packets that a host sends."""
    delay_ms: float = 0.0
    """Of each packet, one way."""
    congestion: str = DEFAULT_CONGESTION
    """TCP's congestion control."""
    rails: int = 1
    """Networks, each with an interface of every host."""
    trunk_megabits: float | None = None
    """Rate, on each rail, of the link between two switches with half of the hosts each; None: there is one switch."""
    slow: tuple[SlowPort, ...] = ()

    @property
    def gbps(self) -> float | None:
        """Rate of a host's port per direction on one rail, in 10^9 bits per second; None: not limited."""
        return None if self.megabits is None else self.megabits / 1000

    def describe(self) -> str:
        """The text of which this is the specification, in one order."""
        terms = [f"{self.hosts} hosts"]
        terms += [_rate_text(self.megabits)] if self.megabits is not None else []
        terms += [f"{self.rails} rails"] if self.rails > 1 else []
        terms += [f"trunk {_rate_text(self.trunk_megabits)}"] if self.trunk_megabits is not None else []
        terms += [f"host {each.host} {each.direction} {_rate_text(each.megabits)}" for each in self.slow]
        terms += [f"loss {self.loss_percent:.15g}%"] if self.loss_percent else []
        terms += [f"delay {self.delay_ms:.15g}ms"] if self.delay_ms else []
        return ", ".join([*terms, self.congestion])

    def megabits_of(self, host: int, direction: Direction) -> float | None:
        """Rate of a port in that direction; None: as fast as the kernel is."""
        slow = {(each.host, each.direction): each.megabits for each in self.slow}
        return slow.get((host, direction), self.megabits)


def _rate_text(megabits: float) -> str:
    return f"{megabits / 1000:.15g}gbit" if megabits >= 1000 and megabits % 1000 == 0 else f"{megabits:.15g}mbit"


def parse_lab(text: str) -> LabSpec:
    """The specification that a text describes. Raises ConfigError, which names the term."""
    spec = LabSpec()
    said = set[Any]()
    for term in (each.strip() for each in text.split(",")):
        fields = _read_term(term)
        if fields is None:
            raise ConfigError(f"--lab {term!r}: must be among {_ALLOWED}")
        slow = fields.pop("slow", ())
        what = {*fields, *((each.host, each.direction) for each in slow)}
        if what & said:
            raise ConfigError(f"--lab {term!r}: an earlier term says the same; give one of them")
        said |= what
        spec = spec._replace(**fields, slow=(*spec.slow, *slow))
    _check(spec)
    return spec


def _read_term(term: str) -> dict[str, Any] | None:
    """The fields that one term sets; None: it is no term."""
    number, rate = r"(\d+(?:\.\d+)?)", r"(\d+(?:\.\d+)?(?:kbit|mbit|gbit))"
    if term in CONGESTION_CONTROLS:
        return {"congestion": term}
    if match := re.fullmatch(r"(\d+) hosts", term):
        return {"hosts": int(match[1])}
    if match := re.fullmatch(r"(\d+) rails?", term):
        return {"rails": int(match[1])}
    if match := re.fullmatch(rate, term):
        return {"megabits": _megabits(match[1])}
    if match := re.fullmatch(rf"loss {number}%", term):
        return {"loss_percent": float(match[1])}
    if match := re.fullmatch(rf"delay {number}ms", term):
        return {"delay_ms": float(match[1])}
    if match := re.fullmatch(rf"trunk {rate}", term):
        return {"trunk_megabits": _megabits(match[1])}
    if match := re.fullmatch(rf"host (\d+) (sends|receives) {rate}", term):
        direction: Direction = "sends" if match[2] == "sends" else "receives"
        return {"slow": (SlowPort(int(match[1]), direction, _megabits(match[3])),)}
    return None


def _megabits(text: str) -> float:
    unit = text[-4:]
    return float(text.removesuffix(unit)) * _MEGABITS[unit]


def _check(spec: LabSpec) -> None:
    """Raise ConfigError for what cannot be."""
    rates = [spec.megabits, spec.trunk_megabits, *(each.megabits for each in spec.slow)]
    last = max((each.host for each in spec.slow), default=0)
    for wrong, what in (
        (not 2 <= spec.hosts <= MOST_HOSTS, f"{spec.hosts} hosts: must be 2 to {MOST_HOSTS}"),
        (not 1 <= spec.rails <= MOST_RAILS, f"{spec.rails} rails: must be 1 to {MOST_RAILS}"),
        (spec.loss_percent >= 100, f"loss {spec.loss_percent:g}%: must be below 100%"),
        (0 < spec.loss_percent < 1e-4, f"loss {spec.loss_percent:g}%: must be at least 0.0001%"),
        (
            spec.delay_ms and not LEAST_DELAY_MS <= spec.delay_ms <= MOST_DELAY_MS,
            f"delay {spec.delay_ms:g}ms: must be {LEAST_DELAY_MS:g} to {MOST_DELAY_MS:g}",
        ),
        (0 in rates, "a rate of 0: must be above 0"),
        (last >= spec.hosts, f"host {last}: must be 0 to {spec.hosts - 1}"),
    ):
        if wrong:
            raise ConfigError(f"--lab {what}")
