"""What interruptions take of a training in the long run, by kinds, in closed form.

A gang is interrupted by a Poisson process, also while it is down. Each interruption of its work is of some kind,
independently: whether it loses work, and for how long the gang is down after it. Between them the gang works for
`interval`, waits for a save, and works again; after each of them it begins such a cycle anew. A save counts once it is
durable.

With M the mean time between interruptions, t the interval, c = t + save, L from the end of a save until it is durable:
work that is reached at all lasts M on average, for interruptions have no memory. Of it

    A = M (1 - exp(-t/M)) / (1 - exp(-c/M))     is work, the rest saves,
    B = t exp(-(c + L)/M) / (1 - exp(-c/M))     is work that a durable save has at the end.

An interruption that keeps all leaves A, another one B. Without the former this is Daly's equation 20 (2006) with R + L
in place of R. One that keeps all, but for those that come less than F after a save began, leaves

    A - (t (1 - exp(-F/M)) + E) exp(-t/M) / (1 - exp(-c/M))

for such a one loses the interval before that save, and what was done since its stall S was over, E on average:
M (exp(-S/M) - exp(-F/M)) - (F - S) exp(-F/M).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class InterruptionKind:
    """Interruptions that are alike."""

    share: float
    """Of those that interrupt work; all kinds together are 1."""
    keeps: bool
    """All work is saved before the end; otherwise all since the newest durable save is lost."""
    down_seconds: tuple[float, ...]
    """What follows before work resumes, one after the other, such as a wait and a restart; as many for each kind."""
    exposed_seconds: float = 0.0
    """One that keeps saves nothing where it comes so soon after a save began."""


@dataclass(frozen=True)
class LongRunShares:
    """Shares of all time, which add up to 1."""

    productive: float
    """Work that was not done again."""
    stalled: float
    recomputed: float
    """Work that was lost."""
    down: tuple[float, ...]
    """What follows interruptions, as of `InterruptionKind`."""
    interrupted: float
    """Share of interruptions that interrupt work; the others come while the gang is down."""


def long_run_shares(
    interval: float,
    stall_seconds: float,
    mtbf_seconds: float,
    kinds: Sequence[InterruptionKind],
    if_down_seconds: tuple[float, ...],
    lag_seconds: float = 0.0,
) -> LongRunShares:
    """interval: seconds of work between two saves. stall_seconds: of a save. mtbf_seconds: of the gang; infinite:
    nothing interrupts it. if_down_seconds: what follows an interruption while the gang is down, in place of the rest.
    lag_seconds: from the end of a stall until the save counts. Raises ValueError for shares that do not add up to 1,
    and for times below 0."""
    _refuse_invalid(interval, stall_seconds, mtbf_seconds, kinds)
    cycle, m = interval + stall_seconds, mtbf_seconds
    if math.isinf(m):
        return LongRunShares(interval / cycle, stall_seconds / cycle, 0.0, tuple(0.0 for _ in if_down_seconds), 1.0)
    broken = -math.expm1(-cycle / m)
    worked = min(1.0, -math.expm1(-interval / m) / broken)
    durable = interval / m * math.exp(-(cycle + lag_seconds) / m) / broken
    saved = sum(kind.share * _safe_work(kind, worked, durable, interval, stall_seconds, m) for kind in kinds)
    up = _resumed_share(kinds, if_down_seconds, m)
    after = [(up * kind.share, kind.down_seconds) for kind in kinds] + [(1 - up, if_down_seconds)]
    return LongRunShares(
        productive=up * saved,
        stalled=up * (1 - worked),
        recomputed=up * max(0.0, worked - saved),
        down=tuple(
            sum(share * _stretch_share(seconds, i, m) for share, seconds in after) for i in range(len(if_down_seconds))
        ),
        interrupted=up,
    )


def _safe_work(kind: InterruptionKind, worked: float, durable: float, interval: float, stall: float, m: float) -> float:
    """Work that a stretch keeps which ends with such an interruption, in M."""
    if not kind.keeps:
        return durable
    cycle = interval + stall
    exposed = min(kind.exposed_seconds, cycle)
    after = max(0.0, exposed - stall)
    since = -math.expm1(-after / m) * math.exp(-stall / m) - after / m * math.exp(-exposed / m)
    lost = (-math.expm1(-exposed / m) * interval / m + since) * math.exp(-interval / m) / -math.expm1(-cycle / m)
    return max(durable, worked - lost)


def _resumed_share(kinds: Sequence[InterruptionKind], if_down_seconds: tuple[float, ...], mtbf: float) -> float:
    """Share of interruptions after which work resumes before the next one: q = q s + (1 - q) a, where s and a are these
    shares after one that interrupts work and after one while the gang is down."""
    of_work = sum(kind.share * math.exp(-sum(kind.down_seconds) / mtbf) for kind in kinds)
    while_down = math.exp(-sum(if_down_seconds) / mtbf)
    return while_down / (1 - of_work + while_down)


def _stretch_share(seconds: tuple[float, ...], i: int, mtbf: float) -> float:
    """Time of the i-th stretch, from a to b after an interruption, before the next one: exp(-a/M) - exp(-b/M), in M."""
    return math.exp(-sum(seconds[:i]) / mtbf) * -math.expm1(-seconds[i] / mtbf)


def _refuse_invalid(interval: float, stall: float, mtbf: float, kinds: Sequence[InterruptionKind]) -> None:
    if not (0 < interval < math.inf and stall >= 0 and mtbf > 0):
        raise ValueError(f"interval = {interval}, stall_seconds = {stall}, mtbf_seconds = {mtbf}: must be more than 0")
    if not math.isclose(sum(kind.share for kind in kinds), 1.0) or any(kind.share < 0 for kind in kinds):
        raise ValueError(f"shares of {[kind.share for kind in kinds]}: must be parts of 1")


def best_interval(save_seconds: float, mtbf_seconds: float) -> float:
    """Seconds of work between two saves that lose least: Daly's higher-order estimate, whose first term is Young's
    sqrt(2 C M); the mean time between failures itself where a save takes twice that or more.

    save_seconds: while the work waits. Source: Young 1974, Comm. ACM 17(9), and Daly 2006, Future Generation
    Computer Systems 22(3), equation 37. Raises ValueError unless both are more than zero.
    """
    if not (save_seconds > 0 and mtbf_seconds > 0):
        raise ValueError(f"save_seconds = {save_seconds}, mtbf_seconds = {mtbf_seconds}: both must be more than zero")
    if save_seconds >= 2 * mtbf_seconds:
        return mtbf_seconds
    x = save_seconds / (2 * mtbf_seconds)
    return math.sqrt(2 * save_seconds * mtbf_seconds) * (1 + math.sqrt(x) / 3 + x / 9) - save_seconds
