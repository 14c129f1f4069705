"""Buffers over several rails: the names under which the cases of `network-rails` keep them, and what they show. Pure.

Cases are named by RAIL_MODES. `samples` hold the seconds until all has come, the median of each block, in the order of
rounds: `seconds.BYTES` of one buffer, as for collectives (`network.py`), and `seconds.4.BYTES` of four independent
ones. `values` hold the bytes that came wrong by the same names, `wrong.BYTES` and `wrong.4.BYTES`, and `rails`, their
number.
"""

from collections.abc import Iterable, Mapping, Sequence

from convoy.benchmark.results.case import Case, FrozenResult
from convoy.benchmark.results.network import NetworkResult
from convoy.network.rails.model import crossover, predicted_crossover, split_seconds
from convoy.network.rails.plan import MANY, RAIL_MODES, RailMode, RailTask, RailTimes
from convoy.stats.interval import FEWEST, Interval, interval, paired_ratio

GROUP = "network-rails"

ONE_RAIL, SPLIT, ROUND_ROBIN = RAIL_MODES


class RailSize(FrozenResult):
    """Buffers of one size, sent in each way. Gains are the time over one rail, over the time in that way, from paired
    blocks."""

    buffers: int
    size: int
    """Bytes of each buffer."""
    one: Interval
    """Seconds over one rail."""
    split: Interval
    round_robin: Interval
    split_gain: Interval
    round_robin_gain: Interval
    predicted_split: float | None
    """Seconds of the split, by arithmetic from the times over one rail; None: for one buffer alone."""


class RailsReport(FrozenResult):
    """What a gang found of the rails between two hosts."""

    rails: int
    are_communicators: bool
    """They are communicators of NCCL, which chooses the adapters of each: not proven to be different ones."""
    one_buffer: tuple[RailSize, ...]
    """From small to large."""
    many_buffers: tuple[RailSize, ...]
    message_seconds: float
    """Of one more message on the same rail, from several of the smallest."""
    crossover: float | None
    """Bytes of a buffer from which on the split is faster; None: it is not at the largest size."""
    predicted_crossover: float | None
    """The same by arithmetic from the times over one rail."""
    wrong: int
    """Bytes that came wrong."""
    lab: str
    """Empty: real machines."""


def rail_cases(
    rails: int, times: Mapping[RailTask, RailTimes], *, are_communicators: bool = False
) -> dict[str, NetworkResult]:
    """The figures of each case by its name. are_communicators: as in `RailsReport`."""
    facts = {"rails": float(rails), "communicators": float(are_communicators)}
    cases = {mode: NetworkResult({}, dict(facts), {}) for mode in RAIL_MODES}
    for task, found in times.items():
        cases[task.mode].samples[_name("seconds", task.buffers, task.size)] = found.blocks
        cases[task.mode].values[_name("wrong", task.buffers, task.size)] = float(found.wrong)
    return {str(mode): case for mode, case in cases.items()}


def rails_report(cases: Iterable[Case]) -> RailsReport | None:
    """What the cases of one gang show; None: they measured no rails, or in too few rounds."""
    measured = {case.name: case for case in cases if case.group == GROUP and case.status == "measured" and case.samples}
    if not {*RAIL_MODES} <= {*measured}:
        return None
    times = {mode: _times(measured[mode].samples) for mode in RAIL_MODES}
    keys = sorted(set.intersection(*({*of_mode} for of_mode in times.values())))
    keys = [key for key in keys if all(len(of_mode[key]) >= FEWEST for of_mode in times.values())]
    one = {size: interval(times[ONE_RAIL][1, size]).estimate for buffers, size in keys if buffers == 1}
    if len(one) < 2:
        return None
    rails = round(measured[ONE_RAIL].values["rails"])
    message = _message_seconds(times[ONE_RAIL])
    predicted = {size: split_seconds(one, size, rails, message) for size in one}
    rows = [_row(key, times, predicted if key[0] == 1 else {}) for key in keys]
    of_one = [row for row in rows if row.buffers == 1]
    return RailsReport(
        rails=rails,
        are_communicators=bool(measured[ONE_RAIL].values.get("communicators")),
        one_buffer=tuple(of_one),
        many_buffers=tuple(row for row in rows if row.buffers > 1),
        message_seconds=message,
        crossover=crossover({row.size: row.split_gain.estimate for row in of_one}),
        predicted_crossover=predicted_crossover(one, rails, message),
        wrong=round(
            sum(value for case in measured.values() for name, value in case.values.items() if name.startswith("wrong."))
        ),
        lab=measured[ONE_RAIL].lab,
    )


def _row(
    key: tuple[int, int],
    times: Mapping[RailMode, Mapping[tuple[int, int], Sequence[float]]],
    predicted: Mapping[int, float],
) -> RailSize:
    one, split, in_turn = (times[mode][key] for mode in RAIL_MODES)
    return RailSize(
        buffers=key[0],
        size=key[1],
        one=interval(one),
        split=interval(split),
        round_robin=interval(in_turn),
        split_gain=paired_ratio(list(zip(one, split, strict=True))),
        round_robin_gain=paired_ratio(list(zip(one, in_turn, strict=True))),
        predicted_split=predicted.get(key[1]),
    )


def _message_seconds(one: Mapping[tuple[int, int], Sequence[float]]) -> float:
    """What one more message costs the host: several of the smallest size at once, over one rail, versus one of them."""
    smallest = min((size for buffers, size in one if buffers == MANY and (1, size) in one), default=None)
    if smallest is None:
        return 0.0
    many, single = interval(one[MANY, smallest]).estimate, interval(one[1, smallest]).estimate
    return max(0.0, (many - single) / (MANY - 1))


def _times(samples: Mapping[str, Sequence[float]]) -> dict[tuple[int, int], Sequence[float]]:
    """Seconds by number of buffers and bytes of each."""
    found = {}
    for name, seconds in samples.items():
        kind, *parts = name.split(".")
        if kind == "seconds" and parts and all(part.isdecimal() for part in parts):
            found[int(parts[0]) if len(parts) > 1 else 1, int(parts[-1])] = seconds
    return found


def _name(what: str, buffers: int, size: int) -> str:
    return f"{what}.{size}" if buffers == 1 else f"{what}.{buffers}.{size}"
