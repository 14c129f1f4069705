"""Who cannot have a lab learns in one line what is missing. What a lab does is in tests/system/test_lab.py."""

import os
import shutil

import pytest

from convoy.config.errors import ConfigError
from convoy.drills.testbed import lab
from convoy.drills.testbed.lab import FRAME_BYTES, Lab, burst_bytes
from convoy.drills.testbed.lab_spec import parse_lab


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        Lab(parse_lab(text))
    return str(refused.value)


def test_a_lab_needs_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert refusal("2 hosts").startswith("--lab: needs root")


def test_missing_commands_are_named_with_their_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda command: None)
    assert refusal("2 hosts") == "--lab: needs iproute2; apt-get install iproute2"
    assert refusal("2 hosts, loss 1%") == "--lab: needs iproute2 and nftables; apt-get install iproute2 nftables"


def test_a_congestion_control_that_the_kernel_lacks_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda command: f"/usr/sbin/{command}")
    monkeypatch.setattr(lab, "_read_setting", lambda name: "reno cubic")
    assert refusal("2 hosts, bbr") == "--lab: bbr: this kernel has reno, cubic; modprobe tcp_bbr"


def test_a_burst_is_two_frames_or_a_quarter_of_a_millisecond() -> None:
    assert burst_bytes(1) == 2 * FRAME_BYTES
    assert burst_bytes(10_000) == 312_500
