"""The workloads suite: models that people compare machines by, under each way to distribute them.

Each model has a gang: the strategies of all ranks, in which each rank has as many samples as one rank alone (weak
scaling), one rank alone, as many independent trainings of one rank, and all ranks that share the samples of one (strong
scaling).
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from convoy.benchmark.analysis import scaling
from convoy.benchmark.analysis.cost import case_offer
from convoy.benchmark.analysis.report import BenchReport, CaseFigures, GroupFigures, ScalingPoint
from convoy.benchmark.groups import Group, Ranks, RefusedCase, Suite, VariantSpec
from convoy.benchmark.pages.cases import charts, describe_group, table
from convoy.benchmark.results.values import COMMUNICATION_SECONDS, FIRST_STEP_SECONDS, INDEPENDENT, WEAK
from convoy.benchmark.suites import peers
from convoy.benchmark.suites.scaling import alone_name, independent_name
from convoy.catalog.published_workloads import mfu, published_workloads
from convoy.config.benchmark import BenchConfig, PeerName
from convoy.config.errors import missing_extra
from convoy.config.loader import merge_config, resolve
from convoy.config.run import RunConfig
from convoy.display import formatting
from convoy.display.page import Block, Column, Heading, Text, columns
from convoy.workloads.models import WORKLOADS, Workload, workload

NAME = "workloads"

BASELINE = "ddp"

STRATEGIES: tuple[tuple[str, dict[str, Any]], ...] = (
    (BASELINE, {"strategy": "ddp"}),
    ("fsdp", {"strategy": "fsdp", "reshard_after_forward": True}),
)
"""Of Convoy's own engine."""

LEARNING_RATE = 1e-4
"""A larger one makes rounding visible: small batches in batch normalisation multiply it step by step. After ten steps
of 3e-3, losses of the small ResNet differed by 2 % between ways that compute the same; of this rate, by 2e-7."""

LIBRARIES: tuple[PeerName, ...] = ("torch", "accelerate", "deepspeed")
"""Libraries whose strategies are measured."""

EXCLUDED_PEERS = ("DeepSpeed ZeRO-1", "DeepSpeed ZeRO-3")
"""Peer strategies that only the strategies suite measures."""


def groups(config: BenchConfig, runs: dict[str, RunConfig], ranks: Ranks) -> Iterator[Group]:
    """One group for each configured workload, whatever `models` says. Raises ConfigError for one that is not there."""
    size = config.workloads.size
    for i, name in enumerate(config.workloads.names):
        chosen = workload(name, f"workloads.names.{i}")
        run = run_of_workload(chosen, config, next(iter(runs.values())), ranks.all)
        group = SUITE.make_group(name, run, config.measure, variants_of(chosen.shape(size).each, ranks.all), whole=True)
        yield refuse_without_packages(group, chosen)


def run_of_workload(chosen: Workload, config: BenchConfig, shared: RunConfig, ranks: int) -> RunConfig:
    """The job that all cases of a workload share. shared: the benchmark's of any model, with which it has all in common
    but model, data, batch and, unless it is configured, learning rate."""
    kept = {key: value for key, value in shared.model_dump(mode="json").items() if key not in ("model", "data")}
    rate = {"optimizer": {"lr": LEARNING_RATE, **config.run.get("optimizer", {})}}
    return resolve(merge_config(kept, chosen.run_keys(config.workloads.size, ranks)), rate)


def variants_of(each: int, ranks: int) -> Iterator[VariantSpec]:
    """each: samples of one rank in weak scaling, and of all ranks in strong scaling."""

    def ours(name: str, n: int, batch: int, values: dict[str, float], **more: Any) -> VariantSpec:
        changes = {"train": {"global_batch": batch}, "parallel": {"strategy": "ddp"}}
        return VariantSpec(name=name, ranks=n, changes=changes, values=values, **more)

    for name, keys in STRATEGIES:
        yield VariantSpec(name=name, ranks=ranks, changes={"parallel": keys}, values={WEAK: 1.0})
    compiled = {"parallel": {"strategy": "ddp"}, "train": {"compile": True}}
    yield VariantSpec(name="ddp compiled", ranks=ranks, changes=compiled, values={WEAK: 1.0})
    for spec in peers.variants_of(LIBRARIES):
        if spec.name not in EXCLUDED_PEERS:
            yield spec.model_copy(update={"baseline": None, "ranks": ranks, "values": {WEAK: 1.0}})
    yield ours(alone_name(1), 1, each, {})
    yield ours(independent_name(ranks, 1), 1, each, {INDEPENDENT: 1.0}, at_once=True)
    if each >= ranks:
        yield ours(f"{ranks} ranks, strong", ranks, each, {WEAK: 0.0})


def refuse_without_packages(group: Group, chosen: Workload) -> Group:
    """The group whose cases are refused if the workload's packages are not installed on this machine; of other
    libraries only theirs."""
    absent = next((name for name in chosen.packages if find_spec(name) is None), None)
    if absent is None:
        return peers.refuse_missing_packages(group)
    reason = missing_extra(absent, "workloads")
    refused = tuple(RefusedCase(spec=spec, reason=reason) for spec in group.variants)
    return group.model_copy(update={"refused": refused})


_HOW = (
    "The cases of a table took turns, block by block, in one gang. Communication is what a step of all ranks takes "
    "longer than one of as many independent trainings at the same time. Efficiency is the rate of a rank over that of "
    "one rank alone: with as much work for each rank (weak), or with its work shared (strong). The first step "
    "includes what is compiled and allocated for it."
)


def comparison(report: BenchReport) -> tuple[Block, ...]:
    """A table and charts for each workload."""
    measured = [group for group in report.groups if group.suite == NAME and any(case.rate for case in group.cases)]
    points = {point.case: point for point in getattr(report, NAME, ())}
    blocks: list[Block] = []
    for group in measured:
        how = _HOW if group is measured[0] else ""
        title = f"{SUITE.title}: {group.name.removeprefix(f'{NAME}-')}"
        blocks += [Heading(title), Text(f"{describe_group(group)} {how}", quiet=True)]
        blocks += [*charts(group), table(group), _scaling_table(group, points), *_published(group)]
    return tuple(blocks)


def _scaling_table(group: GroupFigures, points: dict[str, ScalingPoint]) -> Block:
    """What each case communicates, and how it scales."""

    def point(case: CaseFigures) -> ScalingPoint | None:
        return points.get(f"{group.name}-{case.name}")

    def efficiency(case: CaseFigures) -> str | None:
        found = point(case)
        if found is None or found.efficiency is None or found.kind == "independent":
            return None
        return f"{formatting.estimate(found.efficiency, formatting.percent)}, {found.kind}"

    def share(case: CaseFigures) -> float | None:
        found = point(case)
        return found.communication_share if found else None

    return columns(
        group.cases,
        Column("Case", lambda c: c.name),
        Column("Step", lambda c: c.step_seconds, lambda s: formatting.estimate(s, formatting.duration)),
        Column("Communication", lambda c: c.values.get(COMMUNICATION_SECONDS), formatting.duration),
        Column("Of the step", share, formatting.percent),
        Column("Efficiency", efficiency),
        Column("First step", lambda c: c.values.get(FIRST_STEP_SECONDS), formatting.duration),
        Column(f"USD per million {group.unit}", lambda c: case_offer(group, c), formatting.usd),
        drop_empty=True,
    )


def _published(group: GroupFigures) -> tuple[Block, ...]:
    """What others published of the whole model on the same chip."""
    name = group.name.removeprefix(f"{NAME}-")
    whole = any(each.name == name and each.full.name == group.model for each in WORKLOADS)
    rows = published_workloads(name, group.hardware.device) if whole else ()
    if not rows:
        return ()
    heading = f"Published for {rows[0].gpu}. Batches, precision, software and data differ; compare the MFU."
    return Text(heading, quiet=True), columns(
        rows,
        Column("What", lambda r: f"{r.model}, {r.framework}, {r.precision}"),
        Column("GPUs", lambda r: r.gpus),
        Column("Samples per second", lambda r: r.samples_per_second, formatting.significant),
        Column("MFU", mfu, formatting.percent, missing="not known"),
        Column("Measured", lambda r: r.what),
        Column("Source", lambda r: f"{r.source}, {r.date}: {r.url}"),
    )


SUITE = Suite(
    name=NAME,
    title="Workloads",
    meaning="models that people compare machines by, under each way to distribute them",
    groups=groups,
    fewest_ranks=2,
    measures=frozenset({"communication", "memory", "state"}),
    figures=lambda cases, _: {NAME: scaling.scaling_points(cases, NAME)},
    comparison=comparison,
)
