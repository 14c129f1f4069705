"""What a step of each framework consists of, and what training together costs it. Pure."""

from collections.abc import Sequence

from convoy.benchmark.analysis.report import FrameworkFigures
from convoy.benchmark.analysis.sync import split_step_parts
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.figures import NotComparableError, median_parts, step_seconds, sync_share
from convoy.benchmark.results.values import COMPILE_SECONDS, INDEPENDENT

SUITE = "frameworks"


def framework_figures(cases: Sequence[Case]) -> tuple[FrameworkFigures, ...]:
    """Of each measured case in which all ranks train together."""
    own = [case for case in cases if case.suite == SUITE and case.status == "measured"]
    named = {(case.group, case.name): case for case in own}
    together = [case for case in own if not case.values.get(INDEPENDENT)]
    return tuple(_figures(case, named) for case in together)


def _figures(case: Case, named: dict[tuple[str, str], Case]) -> FrameworkFigures:
    alone = named.get((case.group, f"{case.name}, alone"))
    share, why = None, "" if alone else "its ranks alone are not among the results"
    if alone is not None:
        try:
            share = sync_share(case, alone)
        except (NotComparableError, ValueError) as error:
            why = str(error)
    base = named.get((case.group, case.baseline or ""))
    return FrameworkFigures(
        group=case.group,
        case=case.name,
        step_seconds=step_seconds(case),
        parts=profile(median_parts(case), median_parts(alone) if alone else {}),
        share=share,
        why=why,
        compile_seconds=case.values.get(COMPILE_SECONDS),
        loss_difference=None if base is None else _loss_difference(case, base),
    )


def profile(together: dict[str, float], alone: dict[str, float]) -> dict[str, float]:
    """Forward, backward, synchronisation and update of a step. Steps that measure synchronisation as a part of its own
    are taken as they are."""
    if "sync" in together:
        return {"update" if name == "optimizer" else name: s for name, s in together.items() if name != "data"}
    parts = split_step_parts(together, alone)
    if not parts:
        return {}
    waits = sum(seconds for name, seconds in parts.items() if name.startswith("sync in "))
    return {"forward": parts["forward"], "backward": parts["backward"], "sync": waits, "update": parts["update"]}


def _loss_difference(case: Case, base: Case) -> float | None:
    both = list(zip(case.losses, base.losses, strict=False))
    return max((abs(own - other) / abs(other) for own, other in both if other), default=None)
