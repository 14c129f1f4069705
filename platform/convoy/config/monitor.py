"""How a running gang is watched from outside."""

from pydantic import Field

from convoy.config.base import FrozenConfig

MAX_PORT = 65535


class MonitorConfig(FrozenConfig):
    """An endpoint for Prometheus on each node: `docs/guides/watch.md`."""

    port: int | None = Field(None, ge=1, le=MAX_PORT)
    """TCP port at which each node serves its metrics in OpenMetrics, at all of its addresses and without a password;
    null: none does. Nodes on one host, as in a local run, need a port each: node i takes `port` + i."""
