"""Causes why NCCL did not use RDMA, or not with GPUDirect: the log lines that show each cause, and its fix."""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple


class Cause(NamedTuple):
    """A reason why NCCL did not use the best network."""

    of: Literal["tcp", "rdma"]
    """The verdict that the cause explains: `rdma` is RDMA without GPUDirect."""
    line: re.Pattern[bytes] | None
    """Pattern of the messages that show the cause; None: it does not follow from a single message."""
    text: str
    fix: str


CAUSES: Mapping[str, Cause] = {
    "net_is_socket": Cause(
        "tcp",
        re.compile(rb"NCCL_NET(?: set by environment to |=)\"?Socket"),
        "NCCL_NET is set to Socket",
        'Unset NCCL_NET, or set it to "AWS Libfabric" (EFA) or IB.',
    ),
    "plugin_failed": Cause(
        "tcp",
        re.compile(
            rb"NET/OFI .*(?:Only EFA provider|protocol that worked|[Nn]o eligible providers|ny optimal provider$"
            rb"|requires at least libfabric|No viable endpoint|Failed to init|Couldn't open)"
            rb"|Failed to initialize NET plugin (?:AWS )?Libfabric"
        ),
        "the plugin aws-ofi-nccl could not start",
        "Check `fi_info -p efa` and `ls /dev/infiniband` in the container: EFA devices must be visible in it (on "
        "Kubernetes, request vpc.amazonaws.com/efa), and libfabric new enough for the plugin.",
    ),
    "provider": Cause(
        "tcp",
        None,
        "libfabric offers no EFA device, or FI_PROVIDER excludes it",
        "Unset FI_PROVIDER; `fi_info -p efa` must list devices in the container (on Kubernetes, request "
        "vpc.amazonaws.com/efa).",
    ),
    "plugin_not_loaded": Cause(
        "tcp",
        re.compile(
            rb"NET/Plugin.* (?!\S*libnccl-net)\S+: cannot open shared object"
            rb"|NET/Plugin.*undefined symbol|NET/Plugin.*version `"
        ),
        "the network plugin is installed, but what it needs cannot be loaded",
        "Put its libraries on LD_LIBRARY_PATH, for EFA /opt/amazon/efa/lib; `ldd libnccl-net.so` lists them.",
    ),
    "ib_disabled": Cause(
        "tcp",
        re.compile(rb"NCCL_IB_DISABLE set by environment to 1"),
        "NCCL_IB_DISABLE=1 turns InfiniBand and RoCE off, and no plugin took their place",
        "Unset NCCL_IB_DISABLE; on EFA, put libnccl-net.so of aws-ofi-nccl on LD_LIBRARY_PATH.",
    ),
    "no_verbs": Cause(
        "tcp",
        re.compile(rb"Failed to open libibverbs"),
        "libibverbs is missing, so NCCL sees no RDMA device",
        "Install libibverbs1 (Debian) or rdma-core in the image; on EFA, also put libnccl-net.so of aws-ofi-nccl on "
        "LD_LIBRARY_PATH.",
    ),
    "no_plugin": Cause(
        "tcp",
        re.compile(rb"NET/Plugin ?: (?:No plugin found|Could not find|Plugin load|dlerror)"),
        "NCCL found no network plugin (libnccl-net.so), and no InfiniBand device itself",
        "On EFA, put libnccl-net.so of aws-ofi-nccl on LD_LIBRARY_PATH; on InfiniBand or RoCE, make /dev/infiniband "
        "visible in the container.",
    ),
    "no_device": Cause(
        "tcp",
        re.compile(rb"NET/IB : No device found"),
        "NCCL found no RDMA device",
        "Make /dev/infiniband visible in the container; `ibv_devinfo` must list devices.",
    ),
    "no_gdr_module": Cause(
        "rdma",
        re.compile(rb"GPU Direct RDMA Disabled for HCA .*no module|disabling GDR"),
        "the kernel has no module for GPUDirect RDMA",
        "Run `modprobe nvidia-peermem`, or use a kernel from 5.12 and NVIDIA's open driver, which have DMA-BUF.",
    ),
    "gdr_too_far": Cause(
        "rdma",
        re.compile(rb"GPU Direct RDMA Disabled for GPU .*distance"),
        "GPU and NIC are too far apart for GPUDirect",
        "Check `nvidia-smi topo -m`; NCCL_NET_GDR_LEVEL sets the distance that is allowed.",
    ),
    "no_gdr": Cause(
        "rdma",
        re.compile(rb"GPU Direct RDMA Disabled for HCA"),
        "the network does not offer GPUDirect RDMA",
        "Run `modprobe nvidia-peermem`; on EFA, use an instance type with GPUDirect, and FI_EFA_USE_DEVICE_RDMA=1 with "
        "aws-ofi-nccl up to 1.6.",
    ),
}
"""Causes by name, the most specific first."""

_ANY = re.compile(b"|".join(b"(?:%s)" % cause.line.pattern for cause in CAUSES.values() if cause.line))

FIX_LOG = (
    "Run the ranks with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,ENV,NET,GRAPH, up to their first collective between "
    "hosts."
)
"""The fix if the log does not show the network."""


def cause_in(message: bytes) -> str | None:
    """Name of the cause that a message shows; None: it shows none."""
    if _ANY.search(message) is None:
        return None
    return next(name for name, cause in CAUSES.items() if cause.line and cause.line.search(message))


def first_cause(verdict: str, lines: Mapping[str, str]) -> tuple[str, str] | None:
    """Cause and fix of a verdict `tcp` or `rdma`; None: not found. lines: log lines by the name of their cause."""
    for name, cause in CAUSES.items():
        if cause.of == verdict and name in lines:
            return f"{cause.text}: {lines[name]}", cause.fix
    return None
