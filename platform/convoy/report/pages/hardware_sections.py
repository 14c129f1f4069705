"""The section of the training pages on what the hardware did, and what it waited for."""

from collections.abc import Callable, Iterator

from convoy.display import charts, formatting
from convoy.display.page import Block, Callout, Column, Heading, Text, columns
from convoy.report.train_report import HardwareUse, NodeUse, Throttling, TrainReport

_BY_DESIGN = "power cap"
"""GPUs at full load run into it: no reason for a warning."""

_WAITS = {"data": "for data", "exchange": "for decisions of all ranks", "other": "between its parts"}
"""Parts of a step in which the device has nothing to compute, and what it waits for."""


def hardware_use(report: TrainReport, detailed: bool = False) -> tuple[Block, ...]:
    """Utilisation over time, what was throttled, and with `detailed` a table of the nodes; nothing without samples."""
    use = report.hardware_use
    if use is None:
        return ()
    blocks: list[Block] = [Heading("Utilisation"), Text(_summary(use), quiet=True)]
    if waits := _waits_text(report):
        blocks.append(Text(waits, quiet=True))
    blocks += _throttling_callouts(use)
    blocks += _utilisation_curves(use)
    if detailed:
        blocks += [*_power_curve(use), _node_table(use)]
    return tuple(blocks)


def _summary(use: HardwareUse) -> str:
    when = "from the first logged step to the last" if use.while_training else "over all samples"
    facts = [f"Means {when}, by samples of each node"]
    gpu, watts = (_mean(use, value) for value in (lambda n: n.gpu, lambda n: n.gpu_power_watts))
    if gpu is not None:
        facts.append(f"GPU {formatting.percent(gpu)} (share of the time in which a kernel ran)")
    if watts is not None:
        facts.append(f"{formatting.in_unit('W')(watts)} per GPU")
    facts.append(f"CPU {formatting.percent(_mean(use, lambda n: n.cpu) or 0.0)} of all cores")
    facts.append(f"network of a node {_network_text(use)}")
    missing = f" GPUs were not sampled: {use.no_gpus}." if use.no_gpus else ""
    return f"{facts[0]}: {', '.join(facts[1:])}.{missing}"


def _network_text(use: HardwareUse) -> str:
    sent, received = _mean(use, lambda n: n.sent_bytes_per_second), _mean(use, lambda n: n.received_bytes_per_second)
    text = f"{formatting.bandwidth(sent or 0.0)} out, {formatting.bandwidth(received or 0.0)} in"
    rdma = _mean(use, lambda n: n.rdma_sent_bytes_per_second)
    if rdma is None:
        return text
    back = _mean(use, lambda n: n.rdma_received_bytes_per_second) or 0.0
    return f"{text}; by RDMA {formatting.bandwidth(rdma)} out, {formatting.bandwidth(back)} in"


def _waits_text(report: TrainReport) -> str:
    """What the device waited for in a median step, by rank 0's own clock."""
    times = report.step_time
    if times is None or not times.total.median:
        return ""
    parts = [
        f"{formatting.duration(spread.median)} ({formatting.percent(spread.median / times.total.median)}) {text}"
        for name, text in _WAITS.items()
        if (spread := times.parts.get(name)) is not None and spread.median > 0
    ]
    if not parts:
        return ""
    return (
        f"In a median step rank 0's device waited {', '.join(parts)}. Communication that it waited for within forward, "
        "backward and optimizer is part of these."
    )


def _throttling_callouts(use: HardwareUse) -> Iterator[Block]:
    found = [(node, each) for node in use.nodes for each in node.throttling]
    serious = [_throttling_text(node, each) for node, each in found if each.reason != _BY_DESIGN]
    expected = [_throttling_text(node, each) for node, each in found if each.reason == _BY_DESIGN]
    if serious:
        yield Callout("GPUs were throttled", f"{'; '.join(serious)}.", "warning")
    if expected:
        yield Text(f"Clocks held down by the power limit: {'; '.join(expected)}.", quiet=True)


def _throttling_text(node: NodeUse, each: Throttling) -> str:
    gpus = f"GPU{'' if len(each.gpus) == 1 else 's'} {', '.join(map(str, each.gpus))}"
    return f"{gpus} of node {node.node}: {each.reason}, {formatting.percent(each.share)} of the node's readings"


def _utilisation_curves(use: HardwareUse) -> Iterator[Block]:
    unit, divisor = _time_unit(use)
    start = use.points[0].t
    series = [
        charts.Series("CPU", [((p.t - start) / divisor, 100 * p.cpu) for p in use.points]),
        charts.Series("GPU", [((p.t - start) / divisor, 100 * p.gpu) for p in use.points if p.gpu is not None]),
    ]
    shown = [each for each in series if each.points]
    if len(use.points) > 1:
        title = " and ".join(sorted((each.name for each in shown), reverse=True))
        yield charts.curves(
            f"Utilisation, {title}", shown, "%, mean of all nodes", True, f"{unit} since the first sample"
        )


def _power_curve(use: HardwareUse) -> Iterator[Block]:
    unit, divisor = _time_unit(use)
    start = use.points[0].t
    watts = [((p.t - start) / divisor, p.gpu_power_watts) for p in use.points if p.gpu_power_watts is not None]
    if len(watts) > 1:
        power = [charts.Series("power", watts)]
        yield charts.curves("Power of a GPU", power, "W, mean", True, f"{unit} since the first sample")


def _time_unit(use: HardwareUse) -> tuple[str, float]:
    """The unit of the time axis, and its seconds."""
    span = use.points[-1].t - use.points[0].t
    return ("seconds", 1.0) if span < 300 else ("minutes", 60.0) if span < 3 * 3600 else ("hours", 3600.0)


def _node_table(use: HardwareUse) -> Block:
    return columns(
        use.nodes,
        Column("Node", lambda n: n.node),
        Column("GPUs", lambda n: n.gpus or None),
        Column("GPU", lambda n: n.gpu, formatting.percent),
        Column("Lowest GPU", lambda n: n.lowest_gpu, formatting.percent),
        Column("Power per GPU", lambda n: n.gpu_power_watts, formatting.in_unit("W")),
        Column("Hottest GPU", lambda n: n.gpu_temperature_celsius, formatting.in_unit("°C")),
        Column("GPU memory, highest", lambda n: _used_text(n.gpu_memory_bytes, n.gpu_memory_total_bytes)),
        Column("SM clock", lambda n: n.gpu_clock_hertz, lambda hertz: f"{hertz / 1e6:,.0f} MHz"),
        Column("CPU", lambda n: n.cpu, formatting.percent),
        Column("Host memory, highest", lambda n: _used_text(n.memory_bytes, n.memory_total_bytes)),
        Column("Sent", lambda n: n.sent_bytes_per_second, formatting.bandwidth),
        Column("Received", lambda n: n.received_bytes_per_second, formatting.bandwidth),
        Column("Sent by RDMA", lambda n: n.rdma_sent_bytes_per_second, formatting.bandwidth),
        Column("Received by RDMA", lambda n: n.rdma_received_bytes_per_second, formatting.bandwidth),
        Column("Root's free space", lambda n: n.disk_free_bytes, formatting.size),
        drop_empty=True,
    )


def _used_text(used: int | None, total: int | None) -> str | None:
    return None if used is None or total is None else f"{formatting.gib(used)} of {formatting.gib(total)}"


def _mean(use: HardwareUse, value: Callable[[NodeUse], float | None]) -> float | None:
    """Over the nodes, weighted by the time of their samples; None: no node reports it."""
    known = [(each, node.seconds) for node in use.nodes if (each := value(node)) is not None]
    seconds = sum(weight for _, weight in known)
    return sum(each * weight for each, weight in known) / seconds if seconds else None
