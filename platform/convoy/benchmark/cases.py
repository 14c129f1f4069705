"""The cases of a gang: its variants take turns, then each is measured by itself; rank 0 writes what came of it."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from importlib.metadata import version

from convoy import script
from convoy.benchmark.groups import Group, VariantSpec
from convoy.benchmark.measure import collectives
from convoy.benchmark.measure.host_use import HostMeter, host_meter, host_uses
from convoy.benchmark.measure.memory_footprint import Footprint, largest_footprint, measure_footprints
from convoy.benchmark.measure.observer import Observer, add_observations, add_shares, observer_of, pin_threads
from convoy.benchmark.measure.predictions import measure_machine_by_dtype, predict_cases
from convoy.benchmark.measure.provenance import host_memory_bytes, provenance
from convoy.benchmark.results.case import Block, Case, Hardware
from convoy.benchmark.results.figures import exposed_seconds
from convoy.benchmark.results.values import COMMUNICATION_SECONDS, NETWORK_BYTES, STATE_BYTES, WEAK
from convoy.benchmark.rounds import VariantResult, measure
from convoy.benchmark.suites import peers
from convoy.benchmark.variants.convoy_saving import SavingVariant
from convoy.benchmark.variants.variant import Variant
from convoy.network.counters import host_sent_bytes
from convoy.training.build import model_built_event
from convoy.training.measure.machine import environment, measure_matmul
from convoy.training.process_groups import Ranks

MATMUL_SECONDS = 0.5
"""Time to measure matrix products, for each type that a case computes in."""


def measure_cases(
    group: Group, variants: Sequence[Variant], ranks: Ranks, cores: Sequence[int], own_cores: Sequence[int]
) -> list[Case]:
    """The group's cases on rank 0, whose losses they have; on others none. All ranks call it alike.

    cores: of this host. own_cores: of these, this rank's.
    """
    observer, steps = observer_of(group, cores, own_cores, ranks), iter(range(1, 10**9))
    began, on_gpus = datetime.now(UTC), ranks.device.type == "cuda"

    def progress() -> None:
        script.progress(next(steps))

    machines = measure_machine_by_dtype(group, ranks, progress)
    predicted = predict_cases(group, ranks.place, machines, on_gpus=on_gpus)
    meter = host_meter(group, ranks)
    measured = _measure_in_turns(group, variants, ranks, observer, meter, progress)
    if observer is not None:
        add_observations(observer, variants, measured, ranks, len(cores))
        pin_threads(own_cores if group.measure.pin else cores)
    least_bytes = 1e6 * group.predict.least_mb_per_writer if group.predict is not None else 0.0
    for variant in variants:
        if isinstance(variant, SavingVariant):
            variant.time_saves_without_training(least_bytes, progress)
            measured[variant.name].samples = variant.samples
            measured[variant.name].values |= variant.values
    footprints: dict[str, list[Footprint]] = {}
    for variant in variants if on_gpus or "memory" in group.measures else []:
        footprints[variant.name] = measure_footprints(variant, ranks, progress)
        if taken := largest_footprint(footprints[variant.name]):
            measured[variant.name].memory_peak_bytes = taken.peak_bytes
            measured[variant.name].values |= taken.case_values()
    for name, hosts in host_uses(group, meter, footprints, ranks).items():
        measured[name].hosts = hosts
    types = {spec.name: spec.config(group.run).train.param_dtype for spec in group.variants}
    rates = {dtype: measure_matmul(ranks, dtype, MATMUL_SECONDS) for dtype in sorted({*types.values()})}
    for name, values in collectives.measure_collectives(group, ranks).items():
        measured[name].values |= values
    if group.environment is not None:  # last, because nothing that is timed may follow a profiler
        add_shares(variants, measured, ranks)
    for name, each in measured.items():
        each.matmul_tflops, each.predicted = rates[types[name]], predicted[name]
    if not ranks.first:
        return []
    pairs = zip(group.variants, variants, strict=True)
    return [_case(group, spec, variant, measured, ranks, began, len(cores)) for spec, variant in pairs]


def _measure_in_turns(
    group: Group,
    variants: Sequence[Variant],
    ranks: Ranks,
    observer: Observer | None,
    meter: HostMeter | None,
    progress: Callable[[], None],
) -> dict[str, VariantResult]:
    """The blocks of all variants. All ranks call it alike."""
    saving = [variant for variant in variants if isinstance(variant, SavingVariant)]

    def before_turn(variant: Variant) -> None:
        if observer is not None:
            pin_threads(observer.cores[variant.name])
        for each in saving:  # no save of the block before is under way any more
            each.finish_and_record_save()
        if isinstance(variant, SavingVariant):
            variant.begin_block()

    def watch(variant: Variant, steps: int) -> AbstractContextManager[None]:
        return nullcontext() if observer is None else observer.watch(variant.name, steps)

    return measure(
        variants,
        group.measure,
        ranks,
        progress=progress,
        report=lambda line: print(line, flush=True) if ranks.first else None,
        sent_bytes=_sent_bytes_counter(ranks),
        before_turn=before_turn,
        watch=watch,
        meter=lambda variant, steps: nullcontext() if meter is None else meter.watch(variant.name, steps),
    )


def _sent_bytes_counter(ranks: Ranks) -> Callable[[], float] | None:
    """One rank counts for all of its host. GPUs bypass the kernel, so its counters do not include their traffic."""
    if ranks.device.type == "cuda":
        return None
    return host_sent_bytes if ranks.place.host_rank == 0 else lambda: 0.0


def _case(
    group: Group,
    spec: VariantSpec,
    variant: Variant,
    measured: Mapping[str, VariantResult],
    ranks: Ranks,
    began: datetime,
    cores: int,
) -> Case:
    """measured: of all variants. began: UTC. cores: of this host."""
    config, own = spec.config(group.run), measured[spec.name]
    machine = environment(ranks, config.train.param_dtype, own.matmul_tflops)
    together = spec.ranks or ranks.place.world_size
    jobs = ranks.place.world_size // together if spec.at_once else 1
    values = dict(spec.values)
    if "communication" in group.measures:
        blocks = {name: each.blocks for name, each in measured.items()}
        values = communication_values(blocks, spec, group.variants, ranks.place.world_size)
    if "state" in group.measures:
        values[STATE_BYTES] = float(variant.held_bytes)
    versions = machine.versions | {name: version(name) for name in peers.packages(spec)}
    built = model_built_event(config, 0, 0, variant.example())
    return Case(
        suite=group.suite,
        group=group.name,
        name=spec.name,
        baseline=group.baseline_of(spec),
        model=config.model.name,
        parameters=variant.parameters,
        tokens_per_step=variant.tokens_per_step * jobs,
        unit=built.unit,
        flops_per_token=built.flops_per_token,
        config={key: value for key, value in config.model_dump(mode="json").items() if key != "root"},
        hardware=Hardware(
            device=machine.device,
            nodes=1 if config.cluster.backend == "local" else ranks.place.nodes,
            ranks=together * jobs,
            jobs=jobs,
            threads=machine.threads,
            cores=cores,
            pinned=spec.pins_ranks(group.measure),
            memory_bytes=host_memory_bytes(),
            instance_type=config.cluster.instance_type,
            peak_tflops=machine.peak_tflops,
            matmul_tflops=machine.matmul_tflops,
        ),
        provenance=provenance(group, began, versions),
        warm_up_steps=own.warm_up_steps,
        steady=own.steady,
        blocks=tuple(own.blocks),
        memory_peak_bytes=own.memory_peak_bytes,
        hosts=own.hosts,
        losses=tuple(variant.losses[:10]),
        values=values | own.values | dict(variant.values),
        samples={name: tuple(each) for name, each in own.samples.items()},
        not_measured=spec.not_measured | own.not_measured,
        predicted=own.predicted,
    )


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
