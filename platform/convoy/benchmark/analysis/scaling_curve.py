"""Weak scaling over 1 to 64 nodes as the planner predicts it, with the points that were measured next to it. Pure.

The curve is predicted by the catalog's figures and shipped constants; no step that was measured enters it. Where ranks
measured the machine themselves, as on a CPU, its figures hold for that many ranks on that host, and nothing is said of
more hosts.
"""

from collections.abc import Sequence

from convoy.benchmark.analysis.report import PredictedScaling, PredictedScalingPoint, ScalingPoint
from convoy.benchmark.analysis.scaling import is_reference
from convoy.benchmark.planner_runs import workload_of
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.values import WEAK
from convoy.config.run import RunConfig
from convoy.planner.memory.rank import memory_fit
from convoy.planner.step.step_time import step_time, unmodelled

NODES = (1, 2, 4, 8, 16, 32, 64)

SUITE = "scaling"


def predicted_scaling(cases: Sequence[Case], points: Sequence[ScalingPoint]) -> tuple[PredictedScaling, ...]:
    """A curve for each model on each kind of machine where its weak scaling was measured, or as many ranks as have room
    for it where that is all of the gang. points: of these cases."""
    on_curve = [case for case in cases if case.suite == SUITE and case.status == "measured" and _is_on_curve(case)]
    # A rank alone says nothing of how many its machine has.
    several = [case for case in on_curve if case.values.get(WEAK) or case.hardware.ranks > 1]
    largest = {_trained(case): case for case in sorted(several, key=lambda case: case.hardware.ranks)}
    alike = {case.key: case for case in on_curve}

    def belongs(point: ScalingPoint, case: Case) -> bool:
        other = alike.get(point.case)
        return other is not None and (_trained(other), _rank_tokens(other)) == (_trained(case), _rank_tokens(case))

    return tuple(_curve(case, [point for point in points if belongs(point, case)]) for case in largest.values())


def _is_on_curve(case: Case) -> bool:
    """Whether it is a point of weak scaling."""
    return bool(case.values.get(WEAK)) or is_reference(case)


def _trained(case: Case) -> tuple[str, str]:
    """The model, and the kind of machine that trained it."""
    return case.model, case.hardware.machine


def _rank_tokens(case: Case) -> float:
    return case.tokens_per_step / case.hardware.ranks


def _curve(case: Case, points: Sequence[ScalingPoint]) -> PredictedScaling:
    """case: of the most ranks. points: of its model, machine and tokens per rank, as all predicted ones are."""
    empty = PredictedScaling(model=case.model, machine=case.hardware.machine)
    plan = case.predicted
    if plan is None:
        return empty.model_copy(update={"why": "the results are of a version that predicted nothing"})
    if plan.machine is not None:
        who = f"{case.hardware.ranks} ranks of this host measured {plan.machine.device} at once"
        return empty.model_copy(update={"why": f"{who}, which says nothing of more hosts"})
    try:
        config = RunConfig.model_validate(case.config)
    except ValueError:
        return empty.model_copy(update={"why": "its configuration is of another version"})
    if why := unmodelled(config):
        return empty.model_copy(update={"why": why})
    measured = {p.ranks: p for p in points if p.kind == "weak"}
    found: list[PredictedScalingPoint] = []
    lacking: list[str] = []
    for ranks in sorted({*measured, *(nodes * plan.ranks_per_node for nodes in NODES)}):
        nodes = -(-ranks // plan.ranks_per_node)
        try:
            rate = _tokens_per_second(config, case, nodes, ranks // nodes)
        except ValueError as error:
            lacking.append(f"{nodes if ranks >= plan.ranks_per_node else f'{ranks} ranks of 1'}: {error}")
            continue
        point = measured.get(ranks)
        found.append(
            PredictedScalingPoint(
                nodes=nodes,
                ranks=ranks,
                tokens_per_second=rate,
                efficiency=rate / ranks / (found[0].tokens_per_second / found[0].ranks) if found else 1.0,
                measured=point.tokens_per_second if point else None,
                error=rate / point.tokens_per_second.estimate - 1 if point else None,
            )
        )
    return empty.model_copy(update={"points": tuple(found), "lacking": tuple(lacking)})


def _tokens_per_second(config: RunConfig, case: Case, nodes: int, ranks_per_node: int) -> float:
    """Raises ValueError where the model has no room, or is not divided so."""
    batch = max(1, config.train.global_batch // case.hardware.ranks) * nodes * ranks_per_node
    update = {"train": config.train.model_copy(update={"global_batch": batch})}
    job = workload_of(config.model_copy(update=update), nodes, ranks_per_node, None, on_gpus=True)
    fit = memory_fit(job, fused=config.optimizer.fused)
    if not fit.memory.fits:
        raise ValueError("no room in a rank's memory")
    return job.tokens_per_step / step_time(job).total
