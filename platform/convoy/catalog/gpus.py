"""Peak arithmetic of GPUs, by the name CUDA reports."""

from typing import Literal

from convoy.catalog import load_table
from convoy.config.base import FrozenConfig

Dtype = Literal["bf16", "tf32", "fp32", "fp8"]
"""Type of the operands of a matrix product; `fp32` is without tensor cores."""


class GpuPeak(FrozenConfig):
    """One chip and its dense peaks."""

    chip: str
    """Chip and form factor: the same letters in another form factor can be another peak."""
    names: tuple[str, ...]
    """Names CUDA reports for it, without the leading `NVIDIA`."""
    tflops: dict[Dtype, float]
    """Dense peak in TFLOP/s, for the types whose peak is known."""
    memory_gb_per_second: dict[int, float]
    """Bandwidth of its memory in GB/s (1e9 bytes), by how many GB of it there are, as the data sheet names them."""
    watts: float | None = None
    """Power for which the data sheet states the peak; None: unknown."""
    source: str
    """Document of the figures."""

    def memory_bytes_per_second(self, memory_bytes: float) -> float:
        """Of the variant whose memory is nearest to this."""
        nearest = min(self.memory_gb_per_second, key=lambda size: abs(size * 1e9 - memory_bytes))
        return self.memory_gb_per_second[nearest] * 1e9


def gpu_peak(device_name: str) -> GpuPeak | None:
    """The entry of `torch.cuda.get_device_name()`, or None where the catalog does not have exactly that name.

    Names are compared whole: `H200` is no A100, `H100 PCIe` has another peak than the SXM module, and
    a MIG slice (`... MIG 1g.5gb`) is only a part of its chip.
    """
    # Drivers before 470 left the vendor out.
    name = device_name.strip().removeprefix("NVIDIA ").casefold()
    for entry in load_table("gpus")["gpus"]:
        if name in (each.casefold() for each in entry["names"]):
            return GpuPeak(**entry)
    return None


def peak_tflops(device_name: str, dtype: str) -> float | None:
    """Dense peak of one GPU in TFLOP/s; None where it is not known, and then there is no MFU.

    dtype: type of the operands, as the keys of `GpuPeak.tflops`.
    """
    peak = gpu_peak(device_name)
    return None if peak is None else {str(each): tflops for each, tflops in peak.tflops.items()}.get(dtype)


def chip_peak(chip: str) -> GpuPeak | None:
    """The entry of AWS's short name, e.g. `H100`, or None where the catalog has none. Of several form factors it is the
    SXM module, as AWS has no other of these, and clouds that publish measurements rarely do."""
    for entry in load_table("gpus")["gpus"]:
        if entry["chip"] in (chip, f"{chip} SXM"):
            return GpuPeak(**entry)
    return None
