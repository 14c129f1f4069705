"""A rank of a benchmark's gang: `python -m convoy.benchmark.worker GROUP.json FOLDER`, started as by torchrun.

All variants of the group are built side by side; rank 0 writes a file for each into the folder.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.distributed as dist

from convoy import script
from convoy.benchmark.cases import Found, cases_of
from convoy.benchmark.groups import Group, lack
from convoy.benchmark.measure import collectives
from convoy.benchmark.measure.machine import measured_machines
from convoy.benchmark.measure.memory_footprint import footprint
from convoy.benchmark.measure.observer import observed, observer_of
from convoy.benchmark.measure.pinning import keep_to, share
from convoy.benchmark.measure.predictions import predictions
from convoy.benchmark.results.files import write_case
from convoy.benchmark.rounds import Plan, host_sent_bytes, measure
from convoy.benchmark.suites import environments
from convoy.benchmark.variants.build import AnyVariant, build, prepared_data
from convoy.benchmark.variants.convoy_saving import before_block, measured_at_rest
from convoy.benchmark.variants.rendezvous import place_of_environment, ranks_of_environment
from convoy.config.errors import ConfigError
from convoy.training.measure.machine import measure_matmul
from convoy.training.process_groups import Ranks

MATMUL_SECONDS = 0.5
"""For each type that a case computes in."""


def main(group: Group, folder: Path) -> None:
    """Measure the group, and write what was measured."""
    environments.enter(group.environment)
    cores = sorted(os.sched_getaffinity(0))
    place = place_of_environment(group.run)
    own = share(cores, place.host_rank, place.host_ranks)
    if group.measure.pin:  # before anything makes threads, which keep to it too
        os.sched_setaffinity(0, own)
    ranks = ranks_of_environment(group.run, place)
    group, left_out = measurable(group, ranks.device)
    check_same_cases(group, ranks)
    prepared = prepared_data(group, ranks)
    with ExitStack() as stack:
        variants = [stack.enter_context(closing(build(spec, group, ranks, prepared))) for spec in group.variants]
        found = _found(group, variants, ranks, cores, own, left_out)
        if ranks.first:
            for case in cases_of(group, variants, found, ranks):
                write_case(folder, case)
    dist.destroy_process_group()


def measurable(group: Group, device: torch.device) -> tuple[Group, dict[str, str]]:
    """The group without the variants that cannot be measured on such a device, and by their names why not."""
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    reasons = {spec.name: lack(spec.needs, capability) for spec in group.variants}
    kept = tuple(spec for spec in group.variants if not reasons[spec.name])
    return group.model_copy(update={"variants": kept}), {name: why for name, why in reasons.items() if why}


def check_same_cases(group: Group, ranks: Ranks) -> None:
    """Raise ConfigError if nodes have other packages, and so other cases, than the first one has: ranks that measure
    different things would wait for each other."""
    own = [spec.name for spec in group.variants]
    told: list[list[str]] = [[] for _ in range(ranks.place.world_size)]
    dist.all_gather_object(told, own, group=ranks.control)
    for rank, names in enumerate(told):
        if names != told[0]:
            apart = ", ".join(sorted({*names} ^ {*told[0]}))
            raise ConfigError(f"{group.name}: not all nodes have the packages of {apart} (ranks 0 and {rank} differ)")


def _found(
    group: Group,
    variants: Sequence[AnyVariant],
    ranks: Ranks,
    cores: Sequence[int],
    own: Sequence[int],
    left_out: Mapping[str, str],
) -> Found:
    """Let the variants take turns, and see after that what is seen of each by itself. All ranks call it alike.

    cores: of this host. own: of these, this rank's.
    """
    observer = observer_of(group, cores, own, ranks)
    began, steps = datetime.now(UTC), iter(range(1, 10**9))

    def passed() -> None:
        script.progress(next(steps))

    machines = measured_machines(group, ranks, passed)
    predicted = predictions(group, ranks.place, machines, on_gpus=ranks.device.type == "cuda")
    measured = measure(
        variants,
        _plan(group),
        ranks.device,
        ranks.control,
        passed,
        _sent_bytes(ranks),
        lambda line: print(line, flush=True) if ranks.first else None,
        observer,
        before_block(variants),
    )
    seen = {} if observer is None else observed(observer, variants, measured, ranks, len(cores))
    if observer is not None:
        keep_to(own if group.measure.pin else cores)
    saves = measured_at_rest(variants, group.predict, passed)
    weighed = variants if ranks.device.type == "cuda" or "memory" in group.measures else []
    footprints = {each.name: footprint(each, ranks.device, ranks.control, passed) for each in weighed}
    types = sorted({spec.config(group.run).train.param_dtype for spec in group.variants})
    rates: dict[str, float] = {dtype: measure_matmul(ranks, dtype, MATMUL_SECONDS) for dtype in types}
    return Found(
        began=began,
        cores=len(cores),
        measured=measured,
        seen=seen,
        saves=saves,
        footprints=footprints,
        collectives=collectives.of_cases(group, ranks),
        matmul_tflops=rates,
        left_out=left_out,
        predicted=predicted,
    )


def _plan(group: Group) -> Plan:
    asked = group.measure
    return Plan(
        rounds=asked.rounds,
        block_steps=asked.block_steps,
        block_seconds=asked.block_seconds,
        warm_up_most=asked.warm_up_most,
    )


def _sent_bytes(ranks: Ranks) -> Callable[[], float] | None:
    """One rank of each host tells for all of it. GPUs talk past the kernel, which then cannot tell."""
    if ranks.device.type == "cuda":
        return None
    return host_sent_bytes if ranks.place.host_rank == 0 else lambda: 0.0


if __name__ == "__main__":
    main(Group.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
