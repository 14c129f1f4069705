"""A rank of a benchmark's gang: `python -m convoy.benchmark.worker GROUP.json FOLDER`, started as by torchrun.

All variants of the group are built next to each other; rank 0 writes a file for each into the folder.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.distributed as dist

from convoy import script
from convoy.benchmark.cases import Results, cases_of
from convoy.benchmark.groups import Group, lack
from convoy.benchmark.measure import collectives
from convoy.benchmark.measure.memory_footprint import footprint
from convoy.benchmark.measure.observer import keep_to, observations_of, observer_of, share
from convoy.benchmark.measure.predictions import measured_machines, predictions
from convoy.benchmark.results.files import write_case
from convoy.benchmark.rounds import host_sent_bytes, measure
from convoy.benchmark.suites import environments
from convoy.benchmark.variants.build import build, prepared_data
from convoy.benchmark.variants.convoy_saving import before_block, measured_at_rest
from convoy.benchmark.variants.ranks import place_of_environment, ranks_of_environment
from convoy.benchmark.variants.variant import Variant
from convoy.config.errors import ConfigError
from convoy.training.measure.machine import measure_matmul
from convoy.training.process_groups import Ranks

MATMUL_SECONDS = 0.5
"""Time to measure matrix products, for each type that a case computes in."""


def main(group: Group, folder: Path) -> None:
    """Measure the group, and write its cases."""
    environments.enter(group.environment)
    cores = sorted(os.sched_getaffinity(0))
    place = place_of_environment(group.run)
    own = share(cores, place.host_rank, place.host_ranks)
    if group.measure.pin:  # before any thread is started: threads inherit it
        os.sched_setaffinity(0, own)
    ranks = ranks_of_environment(group.run, place)
    group, left_out = measurable(group, ranks.device)
    check_same_cases(group, ranks)
    prepared = prepared_data(group, ranks)
    with ExitStack() as stack:
        variants = [stack.enter_context(closing(build(spec, group, ranks, prepared))) for spec in group.variants]
        results = _results(group, variants, ranks, cores, own, left_out)
        if ranks.first:
            for case in cases_of(group, variants, results, ranks):
                write_case(folder, case)
    dist.destroy_process_group()


def measurable(group: Group, device: torch.device) -> tuple[Group, dict[str, str]]:
    """The group without the variants that cannot be measured on such a device, and the reasons by their names."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    reasons = {spec.name: lack(spec.needs, capability) for spec in group.variants}
    variants = tuple(spec for spec in group.variants if not reasons[spec.name])
    return group.model_copy(update={"variants": variants}), {name: why for name, why in reasons.items() if why}


def check_same_cases(group: Group, ranks: Ranks) -> None:
    """Raise ConfigError if nodes have other packages, and so other cases, than the first one has: ranks that measure
    different things would wait for each other."""
    every: list[list[str]] = [[] for _ in range(ranks.place.world_size)]
    dist.all_gather_object(every, [spec.name for spec in group.variants], group=ranks.control)
    for rank, names in enumerate(every):
        if names != every[0]:
            apart = ", ".join(sorted({*names} ^ {*every[0]}))
            raise ConfigError(f"{group.name}: not all nodes have the packages of {apart} (ranks 0 and {rank} differ)")


def _results(
    group: Group,
    variants: Sequence[Variant],
    ranks: Ranks,
    cores: Sequence[int],
    own: Sequence[int],
    left_out: Mapping[str, str],
) -> Results:
    """Let the variants take turns, and afterwards measure each by itself. All ranks call it alike.

    cores: of this host. own: of these, this rank's.
    """
    observer = observer_of(group, cores, own, ranks)
    began, steps, on_gpus = datetime.now(UTC), iter(range(1, 10**9)), ranks.device.type == "cuda"
    begin_save = before_block(variants)

    def progress() -> None:
        script.progress(next(steps))

    def before_turn(variant: Variant) -> None:
        if observer is not None:
            keep_to(observer.cores[variant.name])
        begin_save(variant)

    def watch(variant: Variant, steps: int) -> AbstractContextManager[None]:
        return nullcontext() if observer is None else observer.watch(variant.name, steps)

    machines = measured_machines(group, ranks, progress)
    predicted = predictions(group, ranks.place, machines, on_gpus=on_gpus)
    measured = measure(
        variants,
        group.measure,
        ranks,
        progress=progress,
        report=lambda line: print(line, flush=True) if ranks.first else None,
        sent_bytes=_sent_bytes(ranks),
        before_turn=before_turn,
        watch=watch,
    )
    observations = {} if observer is None else observations_of(observer, variants, ranks, len(cores))
    if observer is not None:
        keep_to(own if group.measure.pin else cores)
    saves = measured_at_rest(variants, group.predict, progress)
    weighed = variants if on_gpus or "memory" in group.measures else []
    footprints = {each.name: footprint(each, ranks, progress) for each in weighed}
    types = sorted({spec.config(group.run).train.param_dtype for spec in group.variants})
    rates: dict[str, float] = {dtype: measure_matmul(ranks, dtype, MATMUL_SECONDS) for dtype in types}
    return Results(
        began=began,
        cores=len(cores),
        measured=measured,
        observations=observations,
        saves=saves,
        footprints=footprints,
        collectives=collectives.of_cases(group, ranks),
        matmul_tflops=rates,
        left_out=left_out,
        predicted=predicted,
    )


def _sent_bytes(ranks: Ranks) -> Callable[[], float] | None:
    """One rank counts for all of its host. GPUs bypass the kernel, so its counters do not include their traffic."""
    if ranks.device.type == "cuda":
        return None
    return host_sent_bytes if ranks.place.host_rank == 0 else lambda: 0.0


if __name__ == "__main__":
    main(Group.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
