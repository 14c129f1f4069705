"""What a Terraform stack of `infra/` made, as its output `convoy` describes it."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from convoy.config.cluster import ClusterConfig, FileSystemConfig
from convoy.config.errors import ConfigError, first_mistake

OUTPUT = "convoy"
"""Name of the output."""

_SECONDS = 120
"""For Terraform's answer: its state may be in a bucket."""

_POOL_MARKETS = {
    # A reservation is paid for whether it is used or not.
    "on_demand": ("reservation", "on_demand"),
    "spot": ("spot",),
    "capacity_block": ("capacity_block",),
    # Reserved instances are a price of on-demand usage, which includes that of a capacity reservation.
    "reserved": ("reservation", "on_demand"),
}
"""The pools in which a configuration of each market may run, the preferred one first."""


class Pool(BaseModel):
    """Machines of one type, bought in one way."""

    model_config = ConfigDict(frozen=True)

    instance_type: str
    market: Literal["on_demand", "spot", "capacity_block", "reservation"]
    max_nodes: int
    queue: str | None = None
    """On Batch."""
    node_selector: dict[str, str] = {}
    """On Kubernetes, as `tolerations`."""
    tolerations: tuple[dict[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.instance_type} {self.market} (at most {self.max_nodes})"


class Launcher(BaseModel):
    """The instance from which the metadata service is reached."""

    model_config = ConfigDict(frozen=True)

    tunnel_command: str


class Stack(BaseModel):
    """The part of the output that `convoy infra connect` uses."""

    model_config = ConfigDict(frozen=True)

    stack: str
    """Its name."""
    backend: Literal["batch", "kubernetes"]
    account: str
    region: str
    root: str
    bucket: str
    image: str | None = None
    metaflow: dict[str, str]
    """The profile."""
    pools: tuple[Pool, ...]
    iam_role: str | None = None
    host_volumes: tuple[str, ...] = ()
    file_system: FileSystemConfig | None = None
    """The stack's FSx for Lustre. None: it has none, or was applied before its output named one."""
    namespace: str | None = None
    service_account: str | None = None
    persistent_volume_claims: dict[str, str] = {}
    launcher: Launcher | None = None

    def pool_for(self, cluster: ClusterConfig) -> Pool:
        """The pool for these machines. Raises ConfigError if there is none of their type, market and number."""
        name, market, nodes = cluster.instance_type, cluster.market, cluster.nodes
        of_type = [pool for pool in self.pools if pool.instance_type == name]
        if not of_type:
            raise ConfigError(f"cluster.instance_type = {name}: the stack {self.stack} has {_listed(self.pools)}")
        fitting = [pool for wanted in _POOL_MARKETS[market] for pool in of_type if pool.market == wanted]
        if not fitting:
            raise ConfigError(f"cluster.market = {market}: the stack {self.stack} has {_listed(of_type)}")
        for pool in fitting:
            if nodes <= pool.max_nodes:
                return pool
        raise ConfigError(
            f"cluster.nodes = {nodes}: the stack {self.stack} has {_listed(fitting)}; raise max_nodes and apply it"
        )


def _listed(pools: tuple[Pool, ...] | list[Pool]) -> str:
    return ", ".join(map(str, pools)) or "no machines"


def read_stack(folder: Path) -> Stack:
    """Raises ConfigError if Terraform cannot be run, or the stack is not applied."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; name one that holds a stack, such as infra/aws-batch")
    output = _terraform_output(folder).get(OUTPUT)
    if output is None:
        raise ConfigError(f"{folder}: this stack is not applied; run: terraform -chdir={folder} apply")
    try:
        return Stack.model_validate(output["value"])
    except ValidationError as error:
        raise ConfigError(f"{folder}: output {OUTPUT}: {first_mistake(error)}; apply the stack again") from None


def _terraform_output(folder: Path) -> dict[str, Any]:
    if shutil.which("terraform") is None:
        raise ConfigError("terraform: not on the PATH; install version 1.11 or newer")
    command = ["terraform", f"-chdir={folder}", "output", "-json", "-no-color"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{' '.join(command)}: no answer within {_SECONDS} seconds") from None
    if done.returncode:
        lines = [line.strip("│╷╵ ") for line in done.stderr.splitlines()]
        raise ConfigError(f"{' '.join(command)}: {next((line for line in lines if line), 'failed')}")
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
    except ValueError:
        raise ConfigError(f"{' '.join(command)}: the answer is not JSON") from None
