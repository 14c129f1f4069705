"""Addresses at which a framework's processes find each other."""

import os
import socket


def free_address() -> str:
    """`host:port` of this rank, at which nothing listens now; the other ranks reach it as they reach the gang's first
    rank."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ.get("MASTER_ADDR", "127.0.0.1"), 9))  # a datagram socket: nothing is sent
        host = probe.getsockname()[0]
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((host, 0))
        return f"{host}:{listener.getsockname()[1]}"
