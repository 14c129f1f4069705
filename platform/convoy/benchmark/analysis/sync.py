"""How much of a step is synchronisation, and how fast environments are next to each other. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from convoy.benchmark.analysis.report import (
    TOTAL_STEPS,
    CollectiveSpeedup,
    EnvironmentFigures,
    EnvironmentSeconds,
    SyncFigures,
    SyncLevel,
)
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.collectives import CollectiveTiming, operations_of_samples, timings_from_values
from convoy.benchmark.results.figures import SIGNIFICANT_SPEEDUP, NotComparableError, median_parts, speedup, sync_share
from convoy.benchmark.results.values import INDEPENDENT, RDMA_CLAIMED, START_UP_SECONDS, SYNC_SECONDS
from convoy.stats.interval import FEWEST, Interval, interval, paired_ratio

SUITE = "sync"

SYNCHRONISATION, START_UP, TOTAL_TIME = "synchronisation", "start-up", "total time"
"""What environments are compared by besides throughput."""

LIMITS = (0.2, 0.4)
"""Shares of the step at which the middle level and the high one begin."""

LEVELS: tuple[SyncLevel, ...] = ("low", "middle", "high")


def sync_levels(share: Interval) -> tuple[SyncLevel, ...]:
    """Levels that the interval reaches into; several where it straddles a limit."""
    low, high = (sum(limit <= end for limit in LIMITS) for end in (share.low, share.high))
    return LEVELS[low : high + 1]


def sync_figures(cases: Sequence[Case]) -> tuple[SyncFigures, ...]:
    """Each training of all ranks together, other than those of environments, with the independent trainings of its
    group, where these were measured."""
    own = [case for case in cases if case.suite == SUITE and not case.varied]
    references = {case.group: case for case in own if case.status != "measured" or case.values.get(INDEPENDENT)}
    together = [case for case in own if case.status == "measured" and not case.values.get(INDEPENDENT)]
    return tuple(_compare_with_alone(case, references.get(case.group)) for case in together)


def _compare_with_alone(together: Case, alone: Case | None) -> SyncFigures:
    share, why = None, "" if alone else "the ranks alone are not among the results"
    if alone is not None:
        try:
            share = sync_share(together, alone)
        except (NotComparableError, ValueError) as error:  # a time that is not finite is no figure
            why = str(error)
    ranks = together.hardware.ranks
    return SyncFigures(
        group=together.group,
        model=together.model,
        ranks=ranks,
        share=share,
        levels=() if share is None else sync_levels(share),
        parts=split_step_parts(median_parts(together), median_parts(alone) if alone else {}),
        collectives=timings_from_values(together.values, ranks),
        why=why,
    )


def split_step_parts(together: Mapping[str, float], alone: Mapping[str, float]) -> dict[str, float]:
    """A step of training together: what each phase takes alone, and what it takes beyond that.

    Forward waits for weights that are gathered, backward for these and for gradients that are reduced, and the exchange
    for the few bytes of the norm, the loss and decisions. The update waits for nobody. Empty where one of the two does
    not have its parts.
    """
    if not {"forward", "backward", "optimizer"} <= together.keys() & alone.keys():
        return {}
    seconds = {"data": together.get("data", 0.0)}
    for name in ("forward", "backward", "exchange"):
        seconds[name] = alone.get(name, 0.0)
        seconds[f"sync in {name}"] = together.get(name, 0.0) - alone.get(name, 0.0)
    return {**seconds, "update": together["optimizer"]}


def environment_figures(cases: Sequence[Case]) -> tuple[EnvironmentFigures, ...]:
    """Each case of a group that has gangs in several environments, other than the one that they are compared with."""
    named = {(case.group, case.name): case for case in cases if case.suite == SUITE}
    compared = [c for c in named.values() if c.varied and c.baseline is not None and c.status == "measured"]
    return tuple(_compare_with_base(case, named.get((case.group, case.baseline or ""))) for case in compared)


def _compare_with_base(case: Case, base: Case | None) -> EnvironmentFigures:
    claimed = bool(case.values.get(RDMA_CLAIMED))
    faster, why = None, "" if base else f"{case.baseline} is not among the results"
    if base is not None:
        try:
            faster = speedup(case, base)
        except NotComparableError as error:
            why = str(error)
    further = {} if base is None or faster is None else _compare_times(case, base)
    return EnvironmentFigures(
        group=case.group,
        environment=case.name,
        base=case.baseline or "",
        speedup=faster,
        rdma_claimed=claimed,
        significant=supports_rdma_claim(faster) if faster and claimed else None,
        varied=case.varied,
        why=why,
        **further,
    )


def _compare_times(case: Case, base: Case) -> dict[str, Any]:
    """What environments are compared by besides throughput. base: comparable with the case."""
    own, other = _gang_seconds(case), _gang_seconds(base)
    not_known: dict[str, str] = {}

    def faster(name: str) -> Interval | None:
        try:
            return _time_ratio(other.get(name, {}), own.get(name, {}))
        except ValueError as error:
            not_known[name] = str(error)
            return None

    return {
        "sync_speedup": faster(SYNCHRONISATION),
        "total_speedup": faster(TOTAL_TIME),
        "not_known": not_known,
        "seconds": _environment_seconds(own),
        "base_seconds": _environment_seconds(other),
        "collectives": tuple(_compare_collectives(case, base)),
    }


def _gang_seconds(case: Case) -> dict[str, dict[int, float]]:
    """Seconds in each gang, by what they are of and the gang's number."""
    found = {
        name: _by_gang(case, sample)
        for name, sample in ((SYNCHRONISATION, SYNC_SECONDS), (START_UP, START_UP_SECONDS))
        if sample in case.samples
    }
    if START_UP in found:
        steps = {block.number: block.seconds for block in case.blocks}
        found[TOTAL_TIME] = {n: start + (TOTAL_STEPS - 1) * steps[n] for n, start in found[START_UP].items()}
    return found


def _by_gang(case: Case, sample: str) -> dict[int, float]:
    return {block.number: seconds for block, seconds in zip(case.blocks, case.samples[sample], strict=True)}


def _time_ratio(base: Mapping[int, float], own: Mapping[int, float]) -> Interval:
    """Time of the first environment over that of another, over pairs of gangs. Raises ValueError, with the reason."""
    if not base or not own:
        raise ValueError("it was not measured in each gang")
    pairs = [(base[number], own[number]) for number in own if number in base]
    if any(min(pair) <= 0 for pair in pairs):
        raise ValueError("in a gang it took no time that was seen")
    return paired_ratio(pairs)


def _environment_seconds(of_gangs: Mapping[str, Mapping[int, float]]) -> EnvironmentSeconds:
    def median(name: str) -> Interval | None:
        each = of_gangs.get(name, {})
        return interval([*each.values()]) if len(each) >= FEWEST else None

    return EnvironmentSeconds(sync=median(SYNCHRONISATION), start_up=median(START_UP), total=median(TOTAL_TIME))


def _compare_collectives(case: Case, base: Case) -> Iterator[CollectiveSpeedup]:
    """Those that all gangs of both environments measured."""
    for name, (operation, size) in operations_of_samples(case.samples).items():
        if name not in base.samples:
            continue
        own, other = _by_gang(case, name), _by_gang(base, name)
        first, second = (
            CollectiveTiming(
                operation=operation, bytes=size, ranks=each.hardware.ranks, seconds=interval(each.samples[name])
            )
            for each in (base, case)
        )
        yield CollectiveSpeedup(base=first, own=second, speedup=_time_ratio(other, own))


def supports_rdma_claim(speedup: Interval) -> bool:
    """Whether a speedup is what is claimed of RDMA, at the lower end of its interval."""
    return speedup.low >= SIGNIFICANT_SPEEDUP
