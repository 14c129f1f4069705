"""How a benchmark's gangs are divided: a share is what one task of the flow runs, its gangs one after the other.

Cases that are compared are in one gang, and so in one share. On this host there is one share, so that no two gangs work
at once; elsewhere each gang has machines of its own, and drills no more than they need. The gangs of the network suite
share theirs: each takes seconds, and what is measured of one network belongs together.
"""

from collections.abc import Iterator, Sequence

from convoy.benchmark.groups import Group, Ranks, VariantSpec
from convoy.benchmark.plan import name_keys_under_run, plan_groups, run_of
from convoy.catalog.instances import instance
from convoy.catalog.prices import SHIPPED
from convoy.config.base import FrozenConfig
from convoy.config.benchmark import BenchConfig
from convoy.config.errors import ConfigError
from convoy.config.run import RunConfig, World, check_ranks
from convoy.config.train import BudgetConfig
from convoy.display.formatting import duration, plural, usd
from convoy.launch.checks.compatibility import world
from convoy.launch.checks.host import gpu_memory_bytes, local_gpus
from convoy.launch.checks.memory import MIB, host_memory_mib
from convoy.launch.checks.preflight import with_host_defaults
from convoy.launch.dry_run import align_lines, machine_in_words, price_in_words
from convoy.launch.pricing import instance_price
from convoy.planner.workload import rented_type


class Share(FrozenConfig):
    """Gangs of the same size."""

    nodes: int
    groups: tuple[Group, ...]


def run_on_host(config: BenchConfig, model: str) -> RunConfig:
    """The job that all cases of a model share, as this host launches it. Raises ConfigError."""
    return with_host_defaults(run_of(config, model), local_gpus())


def world_of(config: BenchConfig) -> World:
    """The ranks of a gang. Raises ConfigError."""
    return world(run_on_host(config, config.models[0]), local_gpus())


def shares_of(config: BenchConfig) -> list[Share]:
    """All shares of a benchmark. Raises ConfigError, also for a model that has no room on its ranks."""
    runs = {model: run_on_host(config, model) for model in config.models}
    first = next(iter(runs.values()))
    if first.budget != BudgetConfig():
        raise ConfigError("run.budget: a benchmark has none; on a cluster run.cluster.time_limit_hours ends each gang")
    ranks = world(first, local_gpus())
    groups = plan_groups(config, runs, _ranks_with_memory(first, ranks))
    if not groups:
        raise ConfigError(
            f"suites = {', '.join(config.suites)}: these need more than {ranks.size} rank; raise run.cluster.nodes"
        )
    for group in groups:
        with name_keys_under_run():
            check_ranks(group.run, ranks)
        for spec in group.variants:
            _check_sharding(spec, spec.config(group.run), ranks)
    if first.cluster.backend == "local":
        return [Share(nodes=ranks.nodes, groups=tuple(groups))]
    network = tuple(group for group in groups if group.network is not None)
    shares = [Share(nodes=ranks.nodes, groups=network)] if network else []
    others = [group for group in groups if group.network is None]
    return shares + [Share(nodes=_machine_count(group, ranks), groups=(group,)) for group in others]


def _machine_count(group: Group, ranks: World) -> int:
    """Machines of a share of one group. Drills need one, but Metaflow's JobSet has two at least, and AWS Batch's
    multi-node jobs have more than one where there are adapters (`decorators.step_decorators`)."""
    return ranks.nodes if group.recovery is None else min(ranks.nodes, 2)


def _check_sharding(spec: VariantSpec, run: RunConfig, ranks: World) -> None:
    n = spec.ranks or ranks.size
    sharing = run.parallel.ranks_per_state_copy(n, min(n, ranks.nproc_per_node))
    if n % sharing:
        raise ConfigError(f"run.parallel.shard_size = {sharing}: must divide the {n} ranks of {spec.name}")
    for name, cut in (("tensor", run.parallel.tensor), ("pipeline", run.parallel.pipeline)):
        if n % run.parallel.ranks_per_sample and cut > 1:
            raise ConfigError(f"run.parallel.{name} = {cut}: must divide the {n} ranks of {spec.name}")


def describe_share(share: Share) -> Iterator[str]:
    """A line for each gang that would run."""
    for group in share.groups:
        ranks = f"{world(group.run, local_gpus())} ranks"
        if group.recovery is not None:
            ranks = f"gangs of {group.recovery.nodes} nodes on one host"
        gangs = f", {group.compared.pairs} gangs of each" if group.compared else ""
        yield f"{group.name}: {ranks}{gangs}: {'; '.join(spec.name for spec in group.case_specs)}"
        yield from (f"{group.name}: not {each.spec.name}: {each.reason}" for each in group.refused)


def _ranks_with_memory(run: RunConfig, ranks: World) -> Ranks:
    """The gang's ranks, with the memory of each."""
    rented = rented_type(run)
    if rented is not None:
        machine = instance(rented)
        host = machine.task_memory_mib * MIB // ranks.nproc_per_node
        gpu = machine.gpu.memory_mib * MIB if machine.gpu else None
        on_gpus = gpu is not None
    else:  # all ranks are on this host
        host = host_memory_mib() * MIB // ranks.size
        on_gpus = local_gpus() > 0
        gpu = gpu_memory_bytes() if on_gpus else None
    if not on_gpus:
        return Ranks(ranks.size, ranks.nproc_per_node, host)
    return Ranks(ranks.size, ranks.nproc_per_node, gpu, host)


WORKERS = 16
"""Tasks that Metaflow's `run` runs at the same time, by default of `--max-workers`."""

_LONGER = ", and blocks whose few steps take longer come on top"


def describe_bench(shares: Sequence[Share], run: RunConfig) -> str:
    """A line for each group, and then lines `key: value` for all of them.

    run: of any group, with the price that its machines will have. Raises as `support.world`.
    """
    local = run.cluster.backend == "local"
    price = {} if local else {"price": price_in_words(run, "for a gang")}
    in_all = {"in all": _totals_text(shares, run), "time": _time_text(shares, local), **_cost_lines(shares, run)}
    totals = {"machine": machine_in_words(run), **price, **in_all}
    return "\n".join([*(line for share in shares for line in describe_share(share)), align_lines(totals)])


def planned_block_seconds(group: Group) -> float:
    """Length of all planned blocks of the group, one after the other. Drills and stores have none."""
    if group.recovery is not None or group.stores:
        return 0.0
    pairs = group.compared.pairs if group.compared else 1
    return pairs * len(group.case_specs) * group.measure.rounds * group.measure.block_seconds


def _totals_text(shares: Sequence[Share], run: RunConfig) -> str:
    groups = plural(sum(len(share.groups) for share in shares), "group")
    if run.cluster.backend == "local":
        return f"{groups}, one after the other"
    machines = sorted((share.nodes for share in shares), reverse=True)
    if len(machines) == 1:
        return f"{groups}: {_machines_with_price(machines[0], run)}"
    at_once = machines[:WORKERS]
    together, alone = _machines_with_price(sum(at_once), run), _machines_with_price(machines[0], run)
    return (
        f"{groups}, {len(at_once)} at the same time, each on machines of its own: {together}; "
        f"with run --max-workers 1 one after the other: at most {alone}"
    )


def _machines_with_price(machines: int, run: RunConfig) -> str:
    price = instance_price(run, SHIPPED)
    cost = "" if price is None else f", {price.usd_per_hour * machines:.2f} USD/h"
    return f"{plural(machines, 'machine')}{cost}"


def _time_text(shares: Sequence[Share], local: bool) -> str:
    each = [sum(planned_block_seconds(group) for group in share.groups) for share in shares]
    blocks = f"about {duration(sum(each))} of blocks that count"
    drills = ", drills" if any(group.recovery is not None for share in shares for group in share.groups) else ""
    if local:
        return f"{blocks}; building, warm-up{drills}{_LONGER}"
    return f"{blocks}, {duration(max(each))} in the longest group; machines, building, warm-up{drills}{_LONGER}"


def _cost_lines(shares: Sequence[Share], run: RunConfig) -> dict[str, str]:
    """What all gangs cost: at least their blocks, at most all attempts of all tasks, each to its time limit. Nothing is
    paid for on this host, and nothing is known of a machine without a price."""
    price = None if run.cluster.backend == "local" else instance_price(run, SHIPPED)
    if price is None:
        return {}
    blocks = sum(share.nodes * planned_block_seconds(group) / 3600 for share in shares for group in share.groups)
    hours = run.cluster.time_limit_hours
    limit = sum(share.nodes for share in shares) * hours * (1 + run.cluster.retries)
    least, most = usd(blocks * price.usd_per_hour), usd(limit * price.usd_per_hour)
    tasks = "the task uses" if len(shares) == 1 else f"each of the {len(shares)} tasks uses"
    attempts = "" if run.cluster.retries == 0 else f" in each of {run.cluster.retries + 1} attempts"
    return {"cost": f"{least} for these blocks; at most {most}, if {tasks} its time limit of {hours:g} h{attempts}"}
