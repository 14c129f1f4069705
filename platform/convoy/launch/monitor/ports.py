"""Whether the endpoints of a gang can be opened: checked before a run exists, for nodes on this host."""

import os
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING

from convoy.config.errors import ConfigError, PrerequisiteMissing
from convoy.config.monitor import MAX_PORT
from convoy.config.run import RunConfig

if TYPE_CHECKING:  # imports the events of the log, which a check before a run does not need
    from convoy.gang.task import Node

PACKAGE = "prometheus_client"


def node_port(config: RunConfig, node: "Node") -> int | None:
    """The port of a node's endpoint; None: it has none."""
    port = config.monitor.port
    return None if port is None else port + (node.index if node.shares_host else 0)


def check_monitor(config: RunConfig) -> None:
    """Raise ConfigError if an endpoint of a local run cannot be opened: without the package, or where its port is
    taken or does not exist."""
    first, nodes = config.monitor.port, config.cluster.nodes
    if first is None:
        return
    check_package(first)
    if first + nodes - 1 > MAX_PORT:
        most = MAX_PORT - nodes + 1
        raise ConfigError(f"monitor.port = {first}: must be at most {most}, as each of {nodes} nodes takes a port here")
    for node in range(nodes):
        try:
            listen_everywhere(first + node).close()
        except OSError as error:
            raise unusable_port_error(first, node, first + node, error) from None


def listen_everywhere(port: int) -> socket.socket:
    """Listen at all addresses of this host. Raises OSError."""
    both = socket.has_dualstack_ipv6()
    return socket.create_server(("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both)


def check_package(port: int) -> None:
    """Raise ConfigError where the package that serves metrics is not installed."""
    if find_spec(PACKAGE) is None:
        raise PrerequisiteMissing(f"monitor.port = {port}: needs the extra: pip install 'metaflow-convoy[prometheus]'")


def unusable_port_error(first: int, node: int, port: int, error: OSError) -> ConfigError:
    """first: of the configuration. port: of this node."""
    which = "it" if first == port else f"port {port}, for node {node},"
    why = os.strerror(error.errno) if error.errno else str(error)
    return ConfigError(
        f"monitor.port = {first}: {which} cannot be used on {socket.gethostname()} ({why}); choose another port"
    )
