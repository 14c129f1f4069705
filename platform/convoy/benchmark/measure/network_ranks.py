"""A rank of `convoy net bench` that a launcher or a lab started: `python -m convoy.benchmark.measure.network_ranks
GROUPS.json FOLDER`. It measures every group in one process group; rank 0 writes the cases into the folder."""

import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from convoy.benchmark.groups import Group
from convoy.benchmark.measure.network import measure_network
from convoy.benchmark.measure.network_use import watch_network, with_network_use
from convoy.benchmark.plan import GROUPS
from convoy.benchmark.results.files import write_case
from convoy.benchmark.variants.ranks import join_ranks
from convoy.config.errors import ConfigError
from convoy.display.formatting import work_progress
from convoy.gang.task import RankPosition
from convoy.network.launchers import LaunchedPlace, launched_place
from convoy.training.process_groups import Ranks


def measure_as_rank(groups: Sequence[Group], launched: LaunchedPlace, folder: Path, say: Callable[[str], None]) -> None:
    """Join the other ranks, measure every group with them, and on rank 0 write the cases into the folder.

    say: on rank 0, receives a line before each group. Raises ConfigError on all ranks, before anything is measured, if
    they are not to measure the same.
    """
    os.environ |= {
        "RANK": str(launched.rank),
        "WORLD_SIZE": str(launched.ranks),
        "MASTER_ADDR": launched.address,
        "MASTER_PORT": str(launched.port),
    }
    cores = sorted(os.sched_getaffinity(0))
    place = position(launched, len(cores), lab=bool(groups[0].lab))
    with tempfile.TemporaryDirectory(prefix="convoy-nccl-") as name:  # the output is a table that people read
        log = Path(name) / "log"
        watch = watch_network(log)
        ranks = join_ranks(groups[0].run, place)
        try:
            check_same_plan(groups, ranks)
            start = time.monotonic()
            for number, group in enumerate(groups):
                if ranks.first:
                    say(f"{group.name}: groups: {work_progress(number, len(groups), time.monotonic() - start)}")
                cases = measure_network(group, ranks, len(cores))
                for case in with_network_use(cases, group, ranks, watch, log):
                    write_case(folder, case)
        finally:
            dist.destroy_process_group()


def position(launched: LaunchedPlace, cores: int, *, lab: bool) -> RankPosition:
    """The position of this rank, as the ranks of a gang have it. cores: number that this process may use. lab: the
    hosts of a lab share the cores and the memory of this one."""
    sharing = launched.ranks if lab else launched.local_ranks
    return RankPosition(
        rank=launched.rank,
        local_rank=launched.local_rank,
        node=launched.rank // launched.local_ranks,
        nodes=-(-launched.ranks // launched.local_ranks),
        nproc_per_node=launched.local_ranks,
        host_rank=launched.rank if lab else launched.local_rank,
        host_ranks=sharing,
        threads=max(1, cores // sharing),
    )


def check_same_plan(groups: Sequence[Group], ranks: Ranks) -> None:
    """Raise ConfigError on every rank if ranks were started with different options or versions: they would wait for
    each other."""
    plan = [group.model_dump_json(exclude={"command", "run"}) for group in groups]
    digest = hashlib.sha256("\n".join(plan).encode()).hexdigest()[:12]
    own = f"{digest} of {ranks.place.nproc_per_node} ranks per host"
    every: list[str] = [""] * ranks.place.world_size
    dist.all_gather_object(every, own, group=ranks.control)
    for rank, other in enumerate(every):
        if other != every[0]:
            raise ConfigError(f"rank {rank} is to measure something else than rank 0: start all with the same options")


def main(groups: Sequence[Group], folder: Path) -> int:
    """Exit code: 2 for bad input, with one line on stderr."""
    try:
        launched = launched_place(os.environ)
        if launched is None:
            raise ConfigError("RANK = not set: must be started by torchrun, srun or mpirun")
        torch.set_num_threads(1)
        measure_as_rank(groups, launched, folder, partial(print, flush=True))
    except ConfigError as error:
        print(f"convoy: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    code = main(GROUPS.validate_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of NIXL's UCX may crash while Python tears itself down
