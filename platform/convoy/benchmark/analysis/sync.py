"""How much of a step is synchronisation, and how fast environments are next to each other. Pure."""

from collections.abc import Mapping, Sequence

from convoy.benchmark.analysis.report import EnvironmentFigures, SyncFigures, SyncLevel
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.collectives import timings_from_values
from convoy.benchmark.results.figures import SIGNIFICANT_SPEEDUP, NotComparableError, median_parts, speedup, sync_share
from convoy.benchmark.results.values import INDEPENDENT, RDMA_CLAIMED
from convoy.stats.interval import Interval

SUITE = "sync"

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
    return EnvironmentFigures(
        group=case.group,
        environment=case.name,
        base=case.baseline or "",
        speedup=faster,
        rdma_claimed=claimed,
        significant=supports_rdma_claim(faster) if faster and claimed else None,
        varied=case.varied,
        why=why,
    )


def supports_rdma_claim(speedup: Interval) -> bool:
    """Whether a speedup is what is claimed of RDMA, at the lower end of its interval."""
    return speedup.low >= SIGNIFICANT_SPEEDUP
