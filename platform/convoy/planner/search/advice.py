"""What holds a configuration back, and single changes that improve its plan: each is planned anew."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from convoy.config.run import RunConfig
from convoy.planner.config_keys import Keys, with_keys
from convoy.planner.cost.cost_model import CostModel
from convoy.planner.measurements import Measurements
from convoy.planner.memory.rank import Memory, MemoryFit, memory_fit, shortage_text
from convoy.planner.plan_schema import Bottleneck, Change
from convoy.planner.step.break_even import BreakEven
from convoy.planner.step.calibration import Calibration
from convoy.planner.step.step_time import PART_NAMES, StepTime, step_time
from convoy.planner.workload import Workload

MIN_GAIN = 0.01
"""Smallest share of a step that a change must save: predictions are no more precise than that."""

MAX_CHANGES = 5

NODES = "cluster.nodes"

NUMERICS = {
    "train.reduce_dtype": "gradients are rounded to bf16 as ranks add them up: compare losses before you rely on it"
}
"""Keys whose change affects the results. All others change at most the order of sums."""

COMPUTATION = ("matmul", "attention")
NETWORK = ("gather", "reduce", "tensor", "bubble")
BANDWIDTH = ("memory", "packing", "optimizer")
OVERHEADS = ("kernels", "host", "step", "straggling")
"""Parts of a step, by what sets their pace."""


class PlannedConfig(NamedTuple):
    """A configuration and what is planned of it."""

    config: RunConfig
    job: Workload
    fit: MemoryFit
    time: StepTime
    calibration: Calibration
    measurements: Measurements
    least_nodes: int | None
    """As `rank.least_nodes`, where there is not enough room."""


def bottlenecks(planned: PlannedConfig, break_even: BreakEven | None) -> tuple[Bottleneck, ...]:
    """Memory where it is short, and what most of a step is."""
    job, time = planned.job, planned.time
    limiting = []
    if lacking := shortage_text(*planned.fit):
        fits = all(part is None or part.fits for part in planned.fit)
        limiting.append(Bottleneck(what="memory", text=lacking if fits else f"does not fit: {lacking}"))
    parts = {"computation": COMPUTATION, "network": NETWORK, "memory bandwidth": BANDWIDTH, "overheads": OVERHEADS}
    shares = {name: float(sum(getattr(time, part) for part in of)) / time.total for name, of in parts.items()}
    most = max(shares, key=lambda name: shares[name])
    if shares["network"] >= 0.15 or most == "network":
        below = ""
        if break_even is not None and job.tokens_per_pass < break_even.tokens_per_pass:
            below = (
                f": a pass has {job.tokens_per_pass:,} tokens of a rank, and from {break_even.tokens_per_pass:,.0f} on"
                " computation takes longer than what is sent"
            )
        text = f"{shares['network']:.0%} of a step waits for the network{below}"
        limiting.append(Bottleneck(what="network", text=text))
    if shares["memory bandwidth"] >= 0.2 or most == "memory bandwidth":
        largest = max(BANDWIDTH, key=lambda part: getattr(time, part))
        whose = "the machine's" if job.machine.gpu == "cpu" else "the GPU's own"
        share = f"{shares['memory bandwidth']:.0%} of a step is bound by {whose} memory"
        limiting.append(Bottleneck(what="memory bandwidth", text=f"{share}, most of it {PART_NAMES[largest]}"))
    if shares["overheads"] >= 0.1 or most == "overheads":
        limiting.append(Bottleneck(what="overheads", text=f"{shares['overheads']:.0%} of a step is overheads"))
    if most == "computation":
        who = "the CPUs" if job.machine.gpu == "cpu" else "the GPUs"
        text = f"{shares['computation']:.0%} of a step is matrix products and attention: {who} set the pace"
        limiting.append(Bottleneck(what="computation", text=text))
    return tuple(limiting)


def suggest_changes(planned: PlannedConfig) -> tuple[Change, ...]:
    """Reliable changes that make a step faster; where the configuration itself is not reliable, those that make it so.
    The fastest first; those with more machines after them, and those that affect the results last."""
    candidates = (_evaluate_change(planned, keys) for keys in _candidate_keys(planned))
    better = [
        change
        for change in candidates
        if change is not None and (not planned.fit.reliable or planned.time.total / change.seconds - 1 >= MIN_GAIN)
    ]
    best: dict[frozenset[str], Change] = {}
    for change in sorted(better, key=lambda change: -(planned.time.total / change.seconds)):
        best.setdefault(frozenset(change.keys), change)
    return tuple(sorted(best.values(), key=lambda change: (bool(change.numerics), NODES in change.keys)))[:MAX_CHANGES]


def _candidate_keys(planned: PlannedConfig) -> Iterator[Keys]:
    """Each is one change, some of several keys."""
    job, parallel = planned.job, planned.config.parallel
    for size in range(1, job.sequences_per_rank + 1):
        is_other = size > job.sequences_per_pass if planned.fit.reliable else size < job.sequences_per_pass
        if job.sequences_per_rank % size == 0 and is_other:
            yield {"train.micro_batch": size}
    for mode in ("none", "selective", "full"):
        yield {"train.activation_checkpointing": mode}
    yield {"parallel.wrap": "block" if parallel.wrap == "linear" else "linear"}
    if job.nodes > 1 and parallel.ranks_per_sample == 1:
        whole: Keys = {} if parallel.shard_size is None else {"parallel.shard_size": None}
        yield {"parallel.strategy": "fsdp", **whole}
        yield {"parallel.strategy": "hsdp", **whole}
    yield {"parallel.reshard_after_forward": not parallel.reshard_after_forward}
    if job.passes > 1:
        yield {"parallel.reduce_every_pass": not parallel.reduce_every_pass}
    yield {"train.reduce_dtype": "bf16"}
    yield {"train.compile": True}
    yield {"train.attention": "fused"}
    if parallel.ranks_per_sample > 1:
        yield {"parallel.tensor": 1, "parallel.pipeline": 1}
    if planned.least_nodes is not None:
        yield {NODES: planned.least_nodes}


def _evaluate_change(planned: PlannedConfig, keys: Keys) -> Change | None:
    """None: it changes nothing, is refused, or is not reliable."""
    config, job = with_keys(planned.config, keys), planned.job
    if config is None or config == planned.config:
        return None
    try:
        job = Workload(job.model, job.sequence_length, config.train, config.parallel, job.machine, config.cluster.nodes)
        time = step_time(job, planned.calibration)
    except ValueError:
        return None
    space = memory_fit(job, fused=config.optimizer.fused)
    if not space.reliable:
        return None
    numerics = "; ".join(NUMERICS[key] for key in keys if key in NUMERICS)
    seconds, usd = _run_seconds_and_usd(CostModel(config, job, time.total, planned.measurements))
    return Change(
        keys=keys,
        text="; ".join(filter(None, (_reason(planned, time, space.memory), numerics))),
        seconds=time.total,
        memory_share=space.memory.share,
        numerics=numerics,
        run_seconds=seconds,
        usd=usd,
    )


def _run_seconds_and_usd(costs: CostModel) -> tuple[float | None, float | None]:
    """Seconds and US dollars, in the market of the configuration."""
    try:
        campaign = costs.expected_campaign(costs.save_interval_seconds)
        cost = costs.cost(campaign, costs.price())
    except ValueError:
        return None, None
    return campaign.seconds, cost.usd if cost else None


def _reason(planned: PlannedConfig, time: StepTime, needed: Memory) -> str:
    """The part of a step that changes most in the direction of the step, and the memory."""
    before, after = dataclasses.asdict(planned.time), dataclasses.asdict(time)
    share = time.total / planned.time.total - 1
    memory = f"{needed.share:.0%} of memory instead of {planned.fit.memory.share:.0%}"
    if abs(share) < 0.001:
        return f"as fast, {memory}"
    sign = 1 if share < 0 else -1
    part = max(before, key=lambda name: (before[name] - after[name]) * sign)
    pace = f"{abs(share):.1%} {'less' if share < 0 else 'more'} time a step"
    return f"{pace}: {PART_NAMES[part]} takes {after[part]:.3g} s instead of {before[part]:.3g} s; {memory}"
