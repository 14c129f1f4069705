"""What holds a configuration back, and single changes with which its plan is better: each is planned anew."""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

from convoy.config.run import RunConfig
from convoy.planner.config_keys import Keys, with_keys
from convoy.planner.cost.campaign import Course
from convoy.planner.measurements import Measurements
from convoy.planner.memory.capacity import Room, room, shortage
from convoy.planner.memory.gpu import Memory
from convoy.planner.plan_schema import Change, Limit
from convoy.planner.step.break_even import BreakEven
from convoy.planner.step.calibration import Calibration
from convoy.planner.step.step_time import StepTime, step_time
from convoy.planner.workload import Workload

LEAST_GAIN = 0.01
"""Share of a step that a change must spare: predictions are not nearer than that."""

MOST_CHANGES = 5

MORE = "cluster.nodes"
"""The key of machines, which cost."""

NUMERICS = {
    "train.reduce_dtype": "gradients are rounded to bf16 as ranks add them up: compare losses before you rely on it"
}
"""Keys whose change is one of the results too. All others leave at most another order of sums."""

NETWORK = ("gather", "reduce", "tensor", "bubble")
"""Parts of a step in which ranks wait for what others send."""

BANDWIDTH = ("memory", "packing", "optimizer")
"""Parts that the GPU's memory sets the pace of."""

OVERHEADS = ("kernels", "host", "step", "straggling")

WORDS = {
    "matmul": "matrix products",
    "attention": "attention",
    "memory": "norms and other work bound by memory",
    "kernels": "gaps between kernels",
    "host": "waiting for the CPU",
    "gather": "exposed gathers of parameters",
    "reduce": "exposed reductions of gradients",
    "packing": "packing and unpacking messages",
    "tensor": "adding up activations",
    "bubble": "waiting for other stages",
    "optimizer": "the update",
    "step": "fixed cost of a step",
    "straggling": "waiting for the slowest machine",
}
"""Of the parts of a step."""


class Judged(NamedTuple):
    """A configuration and what is planned of it."""

    config: RunConfig
    job: Workload
    room: Room
    time: StepTime
    calibration: Calibration
    measurements: Measurements
    least_nodes: int | None
    """As `room.least_nodes` has it, where there is not room enough."""


def limits(told: Judged, even: BreakEven | None) -> tuple[Limit, ...]:
    """Memory where it is short, and what most of a step is."""
    found = []
    if lacking := shortage(*told.room):
        fits = all(part is None or part.fits for part in told.room)
        found.append(Limit(what="memory", text=lacking if fits else f"does not fit: {lacking}"))
    shares = _shares(told.time)
    network, bandwidth = shares["network"], shares["memory bandwidth"]
    most = max(shares, key=lambda name: shares[name])
    if network >= 0.15 or most == "network":
        below = ""
        if even is not None and told.job.tokens_per_pass < even.tokens_per_pass:
            below = (
                f": a pass has {told.job.tokens_per_pass:,} tokens of a rank, and from {even.tokens_per_pass:,.0f} on"
                " computation takes longer than what is sent"
            )
        found.append(Limit(what="network", text=f"{network:.0%} of a step waits for the network{below}"))
    if bandwidth >= 0.2 or most == "memory bandwidth":
        largest = max(BANDWIDTH, key=lambda part: getattr(told.time, part))
        whose = "the machine's" if told.job.machine.gpu == "cpu" else "the GPU's own"
        text = f"{bandwidth:.0%} of a step is bound by {whose} memory, most of it {WORDS[largest]}"
        found.append(Limit(what="memory bandwidth", text=text))
    if shares["overheads"] >= 0.1 or most == "overheads":
        found.append(Limit(what="overheads", text=f"{shares['overheads']:.0%} of a step is overheads"))
    if most == "computation":
        who = "the CPUs" if told.job.machine.gpu == "cpu" else "the GPUs"
        text = f"{shares['computation']:.0%} of a step is matrix products and attention: {who} set the pace"
        found.append(Limit(what="computation", text=text))
    return tuple(found)


def changes(told: Judged) -> tuple[Change, ...]:
    """Those that make a step faster and can be relied on; where the configuration itself cannot, those with which it
    can. The fastest first; those with more machines after them, and those that change the results last."""
    known = (_changed(told, keys) for keys in _candidates(told))
    found = [(change, told.time.total / change.seconds) for change in known if change is not None]
    if told.room.enough:
        found = [(change, faster) for change, faster in found if faster - 1 >= LEAST_GAIN]
    best: dict[frozenset[str], Change] = {}
    for change, _ in sorted(found, key=lambda pair: -pair[1]):
        best.setdefault(frozenset(change.keys), change)
    return tuple(sorted(best.values(), key=lambda change: (bool(change.numerics), MORE in change.keys)))[:MOST_CHANGES]


def _candidates(told: Judged) -> Iterator[Keys]:
    """Each is one change, some of several keys."""
    config, job = told.config, told.job
    parallel = config.parallel
    for size in micro_batches(job):
        if size != job.sequences_per_pass and (size > job.sequences_per_pass) == told.room.enough:
            yield {"train.micro_batch": size}
    for mode in ("none", "selective", "full"):
        yield {"train.activation_checkpointing": mode}
    yield {"parallel.wrap": "block" if parallel.wrap == "linear" else "linear"}
    if job.nodes > 1 and parallel.shared_by == 1:
        whole: Keys = {} if parallel.shard_size is None else {"parallel.shard_size": None}
        yield {"parallel.strategy": "fsdp", **whole}
        yield {"parallel.strategy": "hsdp", **whole}
    yield {"parallel.reshard_after_forward": not parallel.reshard_after_forward}
    if job.passes > 1:
        yield {"parallel.reduce_every_pass": not parallel.reduce_every_pass}
    yield {"train.reduce_dtype": "bf16"}
    yield {"train.compile": True}
    yield {"train.attention": "fused"}
    if parallel.shared_by > 1:
        yield {"parallel.tensor": 1, "parallel.pipeline": 1}
    if told.least_nodes is not None:
        yield {MORE: told.least_nodes}


def micro_batches(job: Workload) -> list[int]:
    """Sizes that cut what a rank has of a step into equal passes."""
    count = job.sequences_per_rank
    return [size for size in range(1, count + 1) if count % size == 0]


def _changed(told: Judged, keys: Keys) -> Change | None:
    """None: it changes nothing, is refused, or cannot be relied on."""
    config = with_keys(told.config, keys)
    if config is None or config == told.config:
        return None
    job = told.job
    try:
        job = Workload(job.model, job.sequence_length, config.train, config.parallel, job.machine, config.cluster.nodes)
        time = step_time(job, told.calibration)
    except ValueError:
        return None
    space = room(job, fused=config.optimizer.fused)
    if not space.enough:
        return None
    numerics = "; ".join(NUMERICS[key] for key in keys if key in NUMERICS)
    text = "; ".join(filter(None, (_reason(told, time, space.memory), numerics)))
    run = _run(Course(config, job, time.total, told.measurements))
    return Change(
        keys=keys,
        text=text,
        seconds=time.total,
        memory_share=space.memory.share,
        numerics=numerics,
        run_seconds=run[0],
        usd=run[1],
    )


def _run(course: Course) -> tuple[float | None, float | None]:
    """Seconds and US dollars of the whole run, in the market of the configuration."""
    try:
        campaign = course.at(course.interval)
        cost = course.cost(campaign)
    except ValueError:
        return None, None
    return campaign.seconds, cost.usd if cost else None


def _reason(told: Judged, time: StepTime, needed: Memory) -> str:
    """The part of a step that it changes most in its direction, and what memory it leaves."""
    before, after = dataclasses.asdict(told.time), dataclasses.asdict(time)
    faster = time.total < told.time.total
    spared = {name: (before[name] - after[name]) * (1 if faster else -1) for name in before}
    part = max(spared, key=lambda name: spared[name])
    share = time.total / told.time.total - 1
    how = f"{abs(share):.1%} {'less' if faster else 'more'} time a step" if abs(share) >= 0.001 else "as fast"
    room = f"{needed.share:.0%} of memory instead of {told.room.memory.share:.0%}"
    if abs(share) < 0.001:
        return f"{how}, {room}"
    return f"{how}: {WORDS[part]} takes {after[part]:.3g} s instead of {before[part]:.3g} s; {room}"


def _shares(time: StepTime) -> dict[str, float]:
    def share(*names: str) -> float:
        return float(sum(getattr(time, name) for name in names)) / time.total

    return {
        "computation": share("matmul", "attention"),
        "network": share(*NETWORK),
        "memory bandwidth": share(*BANDWIDTH),
        "overheads": share(*OVERHEADS),
    }
