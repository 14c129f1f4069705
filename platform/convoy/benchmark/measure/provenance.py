"""The origin of a case's figures: sources, versions, variables, and the command."""

import os
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

import convoy
from convoy.benchmark.groups import Group
from convoy.benchmark.results.case import Provenance
from convoy.benchmark.suites.environments import captured_variables

ENVIRONMENT = (
    "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "PYTORCH_ALLOC_CONF", "NCCL_ALGO", "NCCL_PROTO", "NCCL_IB_DISABLE",
    "NCCL_P2P_DISABLE", "NCCL_NET", "NCCL_SOCKET_IFNAME", "FI_PROVIDER", "FI_EFA_USE_DEVICE_RDMA", "GLOO_SOCKET_IFNAME",
)  # fmt: skip
"""Variables that are known to change speed. Of all others, which may hold secrets, only those that an environment of
the configuration sets are recorded."""


def provenance(group: Group, began: datetime, versions: Mapping[str, str]) -> Provenance:
    """The origin of what this process measures for a group. began: UTC."""
    return Provenance(
        measured=began,
        commit=commit_of_sources(),
        versions=dict(versions),
        environment=captured_variables(ENVIRONMENT, group.environment),
        command=group.command,
    )


def host_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def commit_of_sources() -> str:
    """Commit of the running sources, with `+changes` if the package has any; empty if they are in no checkout."""
    here = Path(convoy.__file__).parent

    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return ""
        return done.stdout.strip()

    if not git("ls-files", "__init__.py"):
        return ""
    return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "--", ".") else "")
