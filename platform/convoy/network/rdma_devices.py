"""The RDMA devices of this host, as the kernel lists them in /sys/class/infiniband."""

from pathlib import Path

SYSFS = Path("/sys")


def rdma_devices(sysfs: Path = SYSFS) -> list[str]:
    """Names of all RDMA devices, such as `mlx5_0` or `rdmap0s6`, sorted. Empty: there are none."""
    return sorted(path.name for path in (sysfs / "class" / "infiniband").glob("*"))


def efa_devices(sysfs: Path = SYSFS) -> list[str]:
    """Names of the Elastic Fabric Adapters: the RDMA devices of the driver `efa`, sorted."""
    return [name for name in rdma_devices(sysfs) if _driver(sysfs / "class" / "infiniband" / name) == "efa"]


def _driver(device: Path) -> str:
    driver = device / "device" / "driver"
    return driver.resolve().name if driver.exists() else ""
