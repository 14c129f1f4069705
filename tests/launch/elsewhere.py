"""Runs a flow as if this were a Mac, without what only Linux has: python -m tests.launch.elsewhere FLOW.py WORD…"""

import fcntl
import mmap
import os
import resource
import runpy
import select
import signal
import socket
import sys
import sysconfig
import time
from typing import Any

# Which choose by the system what they are, as they are imported.
import boto3  # noqa: F401
import metaflow.cards  # noqa: F401
import numpy  # noqa: F401
import rich.console  # noqa: F401

ONLY_LINUX = {
    os: ("memfd_create", "pidfd_open", "eventfd", "sched_", "SCHED_", "posix_fadvise", "posix_fallocate", "POSIX_FADV_",
         "O_TMPFILE", "O_DIRECT", "O_PATH", "MFD_", "copy_file_range", "splice", "getrandom", "setns", "unshare",
         "getxattr", "P_PIDFD"),
    select: ("epoll", "EPOLL"),
    signal: ("pidfd_send_signal", "sigwaitinfo", "sigtimedwait", "SIGRT", "SIGSTKFLT", "SIGPWR", "SIGPOLL"),
    socket: ("SOCK_CLOEXEC", "SOCK_NONBLOCK", "TCP_CONGESTION", "TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "AF_NETLINK",
             "AF_PACKET", "SO_PEERCRED", "SO_BINDTODEVICE", "SO_MARK"),
    mmap: ("MAP_POPULATE", "MADV_HUGEPAGE"),
    time: ("CLOCK_BOOTTIME", "pthread_getcpuclockid"),
    resource: ("prlimit",),
    fcntl: ("F_ADD_SEALS", "F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_OFD_"),
}  # fmt: skip
"""How the names begin that macOS does not have."""

FOLDERS = ("/proc", "/sys", "/dev/shm")


def become_a_mac() -> None:
    sysconfig.get_config_vars()  # which are read once, from a file of the system's name
    for module, beginnings in ONLY_LINUX.items():
        for name in [name for name in vars(module) if name.startswith(beginnings)]:
            delattr(module, name)
    sys.platform = "darwin"
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and str(arguments[0]).startswith(FOLDERS):
        raise FileNotFoundError(arguments[0])
    if event == "ctypes.dlsym" and arguments[1] == "prctl":
        raise AttributeError("prctl")


if __name__ == "__main__":
    become_a_mac()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
