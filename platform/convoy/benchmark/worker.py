"""A rank of a benchmark's gang: `python -m convoy.benchmark.worker GROUP.json FOLDER`, started as by torchrun.

All variants of the group are built next to each other; rank 0 writes a file for each into the folder.
"""

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import torch
import torch.distributed as dist

from convoy.benchmark.cases import measure_cases
from convoy.benchmark.groups import Group
from convoy.benchmark.measure.network import measure_network
from convoy.benchmark.measure.network_use import watch_network, with_network_use
from convoy.benchmark.measure.observer import cores_of_rank
from convoy.benchmark.measure.stores import measure_stores
from convoy.benchmark.results.case import Case
from convoy.benchmark.results.files import write_case
from convoy.benchmark.results.values import FIRST_STEP_SECONDS, START_UP_SECONDS
from convoy.benchmark.suites import environments
from convoy.benchmark.variants.build import build_variant, prepare_group_data
from convoy.benchmark.variants.ranks import join_ranks, place_of_environment
from convoy.config.errors import ConfigError
from convoy.training.measure.machine import max_over_ranks
from convoy.training.process_groups import Ranks


def main(group: Group, folder: Path) -> None:
    """Measure the group, and write its cases."""
    began = time.perf_counter()
    environments.set_variables(group.environment)
    cores = sorted(os.sched_getaffinity(0))
    place = place_of_environment(group.run)
    own = cores_of_rank(cores, place.host_rank, place.host_ranks)
    if group.measure.pin:  # before any thread is started: threads inherit it
        os.sched_setaffinity(0, own)
    watch = watch_network()
    ranks = join_ranks(group.run, place)
    group = without_unmeasurable(group, ranks.device)
    check_same_cases(group, ranks)
    if group.network is not None:
        for case in with_network_use(measure_network(group, ranks, len(cores)), group, ranks, watch):
            write_case(folder, case)
        dist.destroy_process_group()
        return
    joined = time.perf_counter()
    data = prepare_group_data(group, ranks)
    prepared = time.perf_counter()
    if group.stores:
        for case in measure_stores(group, ranks, data, len(cores)):
            write_case(folder, case)
        dist.destroy_process_group()
        return
    with ExitStack() as stack:
        variants = [stack.enter_context(closing(build_variant(spec, group, ranks, data))) for spec in group.variants]
        ready = max_over_ranks(joined - began + time.perf_counter() - prepared, ranks)
        cases = measure_cases(group, variants, ranks, cores, own)
        if group.environment is not None:
            cases = with_start_up(cases, ready)
        for case in with_network_use(cases, group, ranks, watch):
            write_case(folder, case)
    dist.destroy_process_group()


def with_start_up(cases: Sequence[Case], ready: float) -> list[Case]:
    """The cases with the time of the gang's start, up to the end of its first step. ready: seconds until then in which
    ranks joined and built the model; preparing the data is not among them, which one gang leaves for the next."""
    return [
        case.model_copy(update={"values": {**case.values, START_UP_SECONDS: ready + case.values[FIRST_STEP_SECONDS]}})
        for case in cases
    ]


def without_unmeasurable(group: Group, device: torch.device) -> Group:
    """The group without the variants that cannot be measured on such a device; its baseline has the reasons."""
    lacking = {spec.name for spec in group.variants if spec.needs_gpu and device.type != "cuda"}
    missing = dict.fromkeys(sorted(lacking), "there is no GPU: everything is in host memory already")
    variants = (
        spec.model_copy(update={"not_measured": spec.not_measured | missing})
        if group.baseline_of(spec) is None
        else spec
        for spec in group.variants
        if spec.name not in lacking
    )
    return group.model_copy(update={"variants": tuple(variants)})


def check_same_cases(group: Group, ranks: Ranks) -> None:
    """Raise ConfigError if nodes have other packages, and so other cases, than the first one has: ranks that measure
    different things would wait for each other."""
    every: list[list[str]] = [[] for _ in range(ranks.place.world_size)]
    dist.all_gather_object(every, [spec.name for spec in group.variants], group=ranks.control)
    for rank, names in enumerate(every):
        if names != every[0]:
            apart = ", ".join(sorted({*names} ^ {*every[0]}))
            raise ConfigError(f"{group.name}: not all nodes have the packages of {apart} (ranks 0 and {rank} differ)")


if __name__ == "__main__":
    main(Group.model_validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
