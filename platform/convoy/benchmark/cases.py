"""The results of a gang, as the cases that its first rank writes."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version

import torch

from convoy.benchmark.groups import Group, VariantSpec
from convoy.benchmark.measure.memory_footprint import Footprint
from convoy.benchmark.measure.observer import Observation
from convoy.benchmark.measure.provenance import host_memory_bytes, provenance
from convoy.benchmark.results.case import Block, Case, Hardware, Predicted
from convoy.benchmark.results.figures import exposed_seconds
from convoy.benchmark.results.values import COMMUNICATION_SECONDS, NETWORK_BYTES, STATE_BYTES, WEAK
from convoy.benchmark.rounds import Measured
from convoy.benchmark.suites import peers
from convoy.benchmark.variants import convoy_saving
from convoy.benchmark.variants.variant import Variant
from convoy.training.build import model_built
from convoy.training.measure.machine import environment
from convoy.training.process_groups import Ranks


@dataclass(frozen=True)
class Results:
    """Results of a group's variants, by their names."""

    began: datetime
    """UTC, when the first block began."""
    cores: int
    """Cores of a host that its processes may use."""
    measured: Mapping[str, Measured]
    observations: Mapping[str, Observation]
    saves: Mapping[str, convoy_saving.Measured]
    footprints: Mapping[str, Footprint | None]
    collectives: Mapping[str, Mapping[str, float]]
    matmul_tflops: Mapping[str, float]
    """Rates by the type that a case computes in."""
    left_out: Mapping[str, str]
    """Variants that this machine cannot measure, with the reasons."""
    predicted: Mapping[str, Predicted]
    """Made before the first block."""


def cases_of(group: Group, variants: Sequence[Variant], results: Results, ranks: Ranks) -> Iterator[Case]:
    """A case for each variant; called by rank 0, whose losses they have."""
    for spec, variant in zip(group.variants, variants, strict=True):
        yield _case(group, spec, variant, results, ranks)


def _case(group: Group, spec: VariantSpec, variant: Variant, results: Results, ranks: Ranks) -> Case:
    config, measured, saved = spec.config(group.run), results.measured[spec.name], results.saves.get(spec.name)
    _, not_measured = results.observations.get(spec.name, ({}, {}))
    baseline, footprint = group.baseline_of(spec), results.footprints.get(spec.name)
    machine = environment(ranks, config.train.param_dtype, results.matmul_tflops[config.train.param_dtype])
    together = spec.ranks or ranks.place.world_size
    jobs = ranks.place.world_size // together if spec.at_once else 1
    versions = machine.versions | {name: version(name) for name in peers.packages(spec)}
    return Case(
        suite=group.suite,
        group=group.name,
        name=spec.name,
        baseline=baseline,
        model=config.model.name,
        parameters=variant.parameters,
        tokens_per_step=variant.tokens_per_step * jobs,
        flops_per_token=model_built(config, torch.nn.Module()).flops_per_token,
        config={key: value for key, value in config.model_dump(mode="json").items() if key != "root"},
        hardware=Hardware(
            device=machine.device,
            nodes=1 if config.cluster.backend == "local" else ranks.place.nodes,
            ranks=together * jobs,
            jobs=jobs,
            threads=machine.threads,
            cores=results.cores,
            pinned=spec.pinned(group.measure),
            memory_bytes=host_memory_bytes(),
            instance_type=config.cluster.instance_type,
            peak_tflops=machine.peak_tflops,
            matmul_tflops=machine.matmul_tflops,
        ),
        provenance=provenance(group, results.began, versions),
        warm_up_steps=measured.warm_up_steps,
        steady=measured.steady,
        blocks=tuple(measured.blocks),
        memory_peak_bytes=footprint.peak if footprint else None,
        losses=tuple(variant.losses[:10]),
        values=_values(group, spec, variant, results, ranks),
        samples={name: tuple(each) for name, each in saved.samples.items()} if saved else {},
        not_measured={**spec.not_measured, **not_measured, **(results.left_out if baseline is None else {})},
        predicted=results.predicted[spec.name],
    )


def _values(group: Group, spec: VariantSpec, variant: Variant, results: Results, ranks: Ranks) -> dict[str, float]:
    """All figures of a case besides its blocks."""
    values = dict(spec.values)
    if "communication" in group.measures:
        blocks = {name: each.blocks for name, each in results.measured.items()}
        values = communication_values(blocks, spec, group.variants, ranks.place.world_size)
    if "state" in group.measures:
        values[STATE_BYTES] = float(variant.held_bytes)
    observation, _ = results.observations.get(spec.name, ({}, {}))
    footprint, saved = results.footprints.get(spec.name), results.saves.get(spec.name)
    values |= observation | dict(results.collectives.get(spec.name, {}))
    return values | (footprint.values() if footprint else {}) | (saved.values if saved else {})


def communication_values(
    blocks: Mapping[str, Sequence[Block]], spec: VariantSpec, variants: Sequence[VariantSpec], ranks: int
) -> dict[str, float]:
    """The values of a case, with what its blocks and those of its group show of communication. ranks: of the gang.

    In weak scaling of all ranks, the time of communication is what a step takes longer than in as many independent
    trainings of one rank at once, by the arithmetic of `sync_share` (`results/figures.py`). Trainings of several ranks
    communicate themselves, so they are no reference.
    """
    values, own = dict(spec.values), blocks[spec.name]
    sent = [block.network_bytes for block in own if block.network_bytes is not None]
    if sent:
        values[NETWORK_BYTES] = statistics.median(sent) / (ranks if spec.at_once else spec.ranks or ranks)
    alone = next((other.name for other in variants if other.at_once and other.ranks == 1), None)
    if spec.ranks == ranks and spec.values.get(WEAK) and alone:
        others = {block.number: block for block in blocks[alone]}
        pairs = [(block, others[block.number]) for block in own if block.number in others]
        values[COMMUNICATION_SECONDS] = max(0.0, exposed_seconds(pairs))
    return values
