"""What the driver tells of GPUs that must not be trained on."""

import os
import time
from pathlib import Path

import pytest

from convoy.gang.diagnosis import gpu_health
from convoy.gang.diagnosis.gpu_health import gpu_problem, lost_gpu, newest_xid, unmappable_gpu
from tests.test_doctor import program

LOST = "Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.  Reboot the system to recover this GPU"
XID = "4,1234,5678901,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1234, name=python, GPU has fallen off the bus."


def driver(
    folder: Path, listing: str = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)", remapped: str = ""
) -> dict[str, str]:
    """An environment in which nvidia-smi answers like this."""
    body = f"case \"$1\" in\n-L) echo '{listing}' >&2;;\n--query-remapped-rows*) echo '{remapped}';;\nesac"
    return program(folder, "nvidia-smi", body)


@pytest.fixture
def kernel_log(tmp_path: Path) -> Path:
    log = tmp_path / "kmsg"
    log.write_text("")
    return log


def test_without_a_driver_nothing_is_wrong(tmp_path: Path) -> None:
    assert gpu_problem({"PATH": str(tmp_path)}) == ""


@pytest.mark.parametrize("remapped", ["00000000:1B:00.0, 0", "00000000:1B:00.0, No", "00000000:1B:00.0, [N/A]", ""])
def test_gpus_that_are_well_are_well(remapped: str, tmp_path: Path, kernel_log: Path) -> None:
    assert gpu_problem(driver(tmp_path / "bin", remapped=remapped), kernel_log) == ""


def test_a_gpu_that_the_driver_lost_is_named_with_what_the_kernel_logged(tmp_path: Path, kernel_log: Path) -> None:
    kernel_log.write_text(f"6,1,2,-;usb 1-1: new device\n{XID}\n")
    told = gpu_problem(driver(tmp_path / "bin", LOST), kernel_log)
    assert told.startswith("Unable to determine the device handle for GPU0000:1B:00.0: GPU is lost.")
    assert told.endswith(
        "(the kernel logged: Xid (PCI:0000:1b:00): 79, pid=1234, name=python, GPU has fallen off the bus.)"
    )


@pytest.mark.parametrize("failed", ["1", "Yes"])
def test_memory_that_cannot_be_mended_is_named(failed: str, tmp_path: Path, kernel_log: Path) -> None:
    remapped = f"00000000:1B:00.0, 0\n00000000:2C:00.0, {failed}"
    told = gpu_problem(driver(tmp_path / "bin", remapped=remapped), kernel_log)
    assert told == "GPU 00000000:2C:00.0: an error in its memory could not be mapped out"


def test_a_kernel_log_that_may_not_be_read_hides_nothing(tmp_path: Path) -> None:
    assert gpu_problem(driver(tmp_path / "bin", LOST), tmp_path / "none").startswith("Unable to determine")


def test_a_driver_that_does_not_answer_is_not_blamed(
    tmp_path: Path, kernel_log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_health, "ASK_SECONDS", 0.3)
    environ = program(tmp_path / "bin", "nvidia-smi", "exec sleep 60")
    began = time.monotonic()
    assert gpu_problem(environ, kernel_log) == ""
    assert time.monotonic() - began < 30


def test_what_is_told_is_one_line() -> None:
    assert lost_gpu(f"GPU 0: fine\n  {LOST}  \n{LOST}") == LOST
    assert unmappable_gpu("No devices were found") == ""
    assert newest_xid(f"{XID}\n4,1,1,-;NVRM: Xid (PCI:0000:2c:00): 48, DBE") == "Xid (PCI:0000:2c:00): 48, DBE"
    assert newest_xid("nothing") == ""


def test_the_kernel_s_own_log_is_read_to_its_end_or_not_at_all() -> None:
    try:
        os.close(os.open(gpu_health.KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        with pytest.raises(OSError):
            gpu_health._read(gpu_health.KERNEL_LOG)
    else:
        assert isinstance(gpu_health._read(gpu_health.KERNEL_LOG), str)
