"""Laws and bounds of checkpoints, links and collectives. Pure.

Per parameter, weights have 2 (bf16) or 4 bytes (fp32); with AdamW's two averages 12 (all fp32), 14 (a bf16 copy more),
16 (the gradients too); 6 where all of it is bf16. Bandwidths of collectives are defined in convoy.network.bandwidth.
"""

from typing import Literal

from convoy.audit import machines
from convoy.audit.facts import Section, model_size
from convoy.audit.laws import Row, bounds, law
from convoy.audit.quantities.format import gigabytes_per_second as gbs
from convoy.audit.quantities.number import Span, exactly, hull
from convoy.audit.solver import CATALOG, Bound, Law, Quantities, Value
from convoy.config.network import OPERATIONS, Operation
from convoy.network.bandwidth import algbw_bound, bus_factor

_CONTENTS = {
    "weights": (Span(2.0, 2.0, 4.0), "2 to 4 bytes of weights"),
    "training_state": (Span(6.0, 12.0, 16.0), "6 to 16 bytes of weights and optimizer"),
    "": (Span(2.0, 12.0, 16.0), "2 (weights) to 16 bytes (all states)"),
}

_DISK = 7.9e9
"""Bytes a second of one NVMe disk at most: four lanes of PCIe 4.0."""

_HOST = 64e9
"""Bytes a second of one GPU to host memory at most: 16 lanes of PCIe 5.0."""

_OPERATIONS: dict[str, Operation | Literal["sendrecv"]] = {
    **dict(zip(OPERATIONS, OPERATIONS, strict=True)),
    "send_recv": "sendrecv",
}
"""Operations by the names that claims have."""

_AND_PAUSE = Span(0.9, 1.0, 1.0)
"""Of steps between two saves over that and a save, which is hardly longer than a tenth of it."""

_NO_FASTER = "links and disks are no faster"

_BOUNDS: list[Row] = [
    ("overhead", exactly(1.0), "impossible", "a part of the time is at most all of it"),
    ("bandwidth", "most", "impossible", _NO_FASTER),
    ("load_bandwidth", "most", "impossible", _NO_FASTER),
    ("peak", "most", "impossible", _NO_FASTER),
    ("bus_bandwidth", "most", "impossible", _NO_FASTER),
    ("algorithm_bandwidth", "most_algorithm", "impossible", _NO_FASTER),
]


def part_bounds(part: Section) -> list[Bound]:
    return bounds(part, _BOUNDS)


def part_laws(part: Section) -> list[Law]:
    if part.claims.section == "checkpoints":
        return _checkpoint(part)
    return _collective(part) if part.claims.section == "collectives" else _link(part)


def machine_limits(part: Section) -> Quantities:
    """What the machine's links and disks do at most."""
    machine = part.machine
    if machine is None:
        return {}
    of = part.claims_on("instance") or (part.run.claims_on("instance") if part.run else frozenset())
    name, network = machine.name, machines.network_bytes_per_second(machine)
    gbit = f"{machine.network_gbps:g} Gbit/s = {gbs(network.value)} of a {name}"
    values: dict[str, tuple[Span, str]] = {}
    if part.claims.section == "checkpoints":
        of |= part.claims_on("to") if part.word("to") != "shared" else frozenset()
        disks, hosts = exactly(machine.nvme_count * _DISK), exactly(machine.gpus * _HOST)
        values["most_per_node"] = {
            "shared": (network, gbit),
            "nvme": (disks, f"{gbs(disks.value)} of {machine.nvme_count} disks of a {name}"),
            "memory": (hosts, f"{gbs(hosts.value)} of PCIe of a {name}"),
        }[part.word("to")]
    elif part.claims.section == "collectives":
        values |= _collective_limits(part, network, gbit)
    elif part.word("scope") == "intra_node":
        nvlink = machines.nvlink_bytes_per_second(machine)
        if nvlink is not None:
            values["most"] = (nvlink, f"{gbs(nvlink.low)} of NVLink of a {name} in one direction")
    else:
        values["most"] = (network, gbit)
        if not part.figures("peak"):
            values["peak"] = values["most"]
    of |= part.claims_on("ranks") | {f"{CATALOG}{name}"}
    of |= part.claims_on("nodes") if part.claims.section == "collectives" else frozenset()
    return {part.quantity_name(key): [Value(span, of, text)] for key, (span, text) in values.items() if span.value}


def _checkpoint(saved: Section) -> list[Law]:
    paused = "stall" if saved.figures("stall") else "save_time"
    laws = [
        law(saved, "size = bandwidth * save_time"),
        law(saved, "size = load_bandwidth * load_time"),
        law(saved, "size = size_per_node * nodes"),
        law(saved, "bandwidth = bandwidth_per_node * nodes"),
        law(saved, "most = most_per_node * nodes"),
        law(saved, f"overhead = {paused} / interval", _overhead_factor(saved, paused)),
    ]
    run, contents = saved.run, saved.word("contents")
    if contents != "adapters" and not (run and run.adapters and not contents):  # of whose size nothing is known
        each, words = _CONTENTS[contents]
        laws.append(law(saved, "size = parameters", each, words, saved.claims_on("contents")))
    if run is not None:
        laws.append(law(saved, "interval = interval_steps * other.step_time", other=run))
        laws += [law(saved, f"{key} = {key}_per_gpu * other.gpus", other=run) for key in ("size", "bandwidth")]
        if not saved.figures("parameters") and not model_size(saved.word("model")):
            laws.append(law(saved, "parameters = other.parameters", other=run))
        if not saved.figures("nodes"):
            laws.append(law(saved, "nodes = other.nodes", other=run))
    return laws


def _overhead_factor(saved: Section, pause_key: str) -> Span:
    """Of the time between two saves, or of that and the save."""
    pause, interval = saved.span(pause_key), saved.span("interval")
    if pause and saved.figures("interval_steps") and not interval:
        return _AND_PAUSE
    if not pause or not interval or pause.high >= interval.low:
        return exactly(1.0)
    return Span(interval.value / (interval.value + pause.value), 1.0, 1.0)


def _link(link: Section) -> list[Law]:
    """A GPU's share of the network is an eighth of a machine with eight."""
    laws, gpus = [law(link, "bandwidth = utilisation * peak")], link.machine.gpus if link.machine else 0
    if gpus and link.word("scope") == "inter_node":
        laws += [law(link, f"{key} = {key}_per_gpu", exactly(gpus), f"{gpus} GPUs") for key in ("bandwidth", "peak")]
    return laws


def _collective(collective: Section) -> list[Law]:
    bus, words = _bus_factor(collective)
    of = collective.claims_on("ranks", "nodes", "gpus_per_node")
    laws = [law(collective, "algorithm_bandwidth = size / time")]
    if bus is not None:
        laws.append(law(collective, "bus_bandwidth = algorithm_bandwidth", bus, words, of))
    if bus is not None and collective.figures("bandwidth"):
        either = hull(exactly(1.0), bus)
        laws.append(law(collective, "bandwidth = algorithm_bandwidth", either, f"1 (of the algorithm) or {words}", of))
    return laws


def _bus_factor(collective: Section) -> tuple[Span | None, str]:
    """Over the bandwidth of the algorithm. Of one that does not state its ranks: one per machine, or one per GPU; else
    the GPUs of a machine, the machines, or all GPUs of its run."""
    operation, run = _OPERATIONS[collective.word("operation")], collective.run
    if bus_factor(operation, 2) == bus_factor(operation, 3):
        return exactly(1.0), "1 (of the bus)"
    nodes, each = collective.value("nodes"), collective.gpus_per_node
    sizes = [nodes, nodes * (each or 8)] if nodes else [each, run.nodes, run.gpus] if run else []
    ranks = sorted({round(n) for n in [collective.value("ranks") or 0] if n > 1} or {round(n) for n in sizes if n > 1})
    if not ranks:
        return None, ""
    factors = [bus_factor(operation, n) for n in ranks]
    words = " or ".join(f"{factor:.4g} (of the bus for {n} ranks)" for n, factor in zip(ranks, factors, strict=True))
    return Span(factors[0], factors[-1], factors[-1]), words


def _collective_limits(collective: Section, network: Span, network_text: str) -> dict[str, tuple[Span, str]]:
    """However it is done, each machine sends and receives its part over the network, and each GPU over NVLink."""
    machine, ranks, operation = collective.machine, collective.value("ranks"), _OPERATIONS[collective.word("operation")]
    bus, _ = _bus_factor(collective)
    if machine is None or bus is None:
        return {}
    nodes = collective.value("nodes") or (ranks / machine.gpus if machine.gpus else 0.0)
    nvlink = machines.nvlink_bytes_per_second(machine)
    if nodes > 1:
        # One rank per node, for a page on an all-to-all may count the size of a rank or of a node.
        algorithm = network.scaled(algbw_bound(operation, nodes, 1, 1.0))
        where = f"{nodes:g} nodes with {network_text}"
    elif nvlink is not None and 1 < ranks <= machine.gpus:
        # Switches that reduce on the way (NVLS) halve what a GPU sends.
        algorithm, where = exactly(nvlink.high / bus.low), f"{gbs(nvlink.low)} of NVLink of a {machine.name}"
    else:
        return {}
    most = algorithm.scaled(max(bus.high, 1.0))
    return {
        "most_algorithm": (algorithm, f"{gbs(algorithm.high)} between {where}" if nodes > 1 else where),
        "most": (most, f"{gbs(most.high)} between {where}" if nodes > 1 else where),
    }
