"""Reader of the output of ibstat: state and rate of the ports of a host's RDMA devices. Pure.

Source: rdma-core, infiniband-diags/ibstat.c.
"""

import re
from dataclasses import dataclass, replace

_DEVICE = re.compile(r"\bCA '([^']+)'")
_PORT = re.compile(r"\bPort (\d+):\s*$")
_FACT = re.compile(r"(State|Physical state|Rate|Effective speed|Link layer|Firmware version):\s+(.*\S)")


@dataclass(frozen=True)
class IbPort:
    """State of one port."""

    where: str
    """`line 12`."""
    device: str
    port: int
    state: str = ""
    """`Active` where it can carry data."""
    physical_state: str = ""
    rate_gbps: float | None = None
    """Rate in 10^9 bits per second in each direction, as rounded by the tool."""
    link_layer: str = ""
    """`InfiniBand` or `Ethernet`."""

    @property
    def transport(self) -> str:
        """Common name of the port's transport: `InfiniBand` or `RoCE`."""
        return "RoCE" if self.link_layer == "Ethernet" else self.link_layer


def is_ibstat(text: str) -> bool:
    """Whether a text is the output of ibstat."""
    return _DEVICE.search(text) is not None


def parse_ibstat(text: str) -> list[IbPort]:
    """All ports, in their order. Raises ValueError if there is none."""
    ports: list[IbPort] = []
    device = ""
    for number, line in enumerate(text.splitlines(), 1):
        if found := _DEVICE.search(line):
            device = found[1]
        elif (found := _PORT.search(line)) and device:
            ports.append(IbPort(f"line {number}", device, int(found[1])))
        elif (found := _FACT.search(line)) and ports and ports[-1].device == device:
            ports[-1] = _with_fact(ports[-1], found[1], found[2], number)
    if not ports:
        raise ValueError("not an output of ibstat with a port: it must have lines `CA 'NAME'` and `Port N:`")
    return ports


def _with_fact(port: IbPort, name: str, value: str, number: int) -> IbPort:
    if name == "State":
        return replace(port, state=value)
    if name == "Physical state":
        return replace(port, physical_state=value)
    if name == "Link layer":
        return replace(port, link_layer=value)
    if name == "Rate":
        try:
            return replace(port, rate_gbps=float(value.split()[0]))
        except ValueError:
            raise ValueError(f"line {number}: Rate: {value}: must be a number") from None
    return port


def contradiction_of(port: IbPort) -> str:
    """The reason why a port's facts contradict each other; empty: they do not."""
    if port.state == "Active" and port.physical_state not in ("", "LinkUp"):
        return f"{port.device} port {port.port}: Active, while its physical state is {port.physical_state}"
    return ""
