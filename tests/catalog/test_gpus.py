"""A GPU's peak is known exactly or not at all."""

import pytest

from convoy.catalog import load_table
from convoy.catalog.gpus import GpuPeak, chip_peak, gpu_peak, peak_tflops
from convoy.catalog.instances import instance, instance_names
from convoy.catalog.measured_machine import CollectiveTiming


@pytest.mark.parametrize(
    ("device", "bf16"),
    [
        ("NVIDIA A100-SXM4-40GB", 312),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("A100-SXM4-40GB", 312),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.4),
        (" NVIDIA h200 ", 989.4),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA B200", 2250),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", 70),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
    ],
)
def test_each_chip_has_its_own_peak(device: str, bf16: float) -> None:
    assert peak_tflops(device, "bf16") == bf16


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",  # a seventh of the chip
        "NVIDIA A100X",
        "NVIDIA A800-SXM4-80GB",
        "NVIDIA H100",  # which form factor?
        "NVIDIA H800",
        "NVIDIA H20",
        "NVIDIA GH200 480GB",
        "NVIDIA B300",
        "NVIDIA GB200",
        "NVIDIA L40",
        "NVIDIA A40",
        "NVIDIA A30",
        "NVIDIA RTX A1000",
        "NVIDIA GeForce RTX 4090",
        "Tesla T4",
        "AMD Instinct MI300X",
        "cpu",
        "",
    ],
)
def test_a_look_alike_or_stranger_has_no_peak(device: str) -> None:
    assert peak_tflops(device, "bf16") is None
    assert gpu_peak(device) is None


@pytest.mark.parametrize(("dtype", "tflops"), [("fp32", 19.5), ("tf32", 156), ("fp8", None), ("fp12", None)])
def test_a_peak_is_that_of_the_type_of_the_operands_and_fp32_s_without_tensor_cores(
    dtype: str, tflops: float | None
) -> None:
    assert peak_tflops("NVIDIA A100-SXM4-80GB", dtype) == tflops


def entries() -> list[GpuPeak]:
    return [GpuPeak(**entry) for entry in load_table("gpus")["gpus"]]


def test_no_name_belongs_to_two_chips() -> None:
    names = [name.casefold() for entry in entries() for name in entry.names]
    assert len(names) == len(set(names))


def test_halving_the_width_of_operands_doubles_the_peak_of_tensor_cores() -> None:
    # The rule of the architectures since Ampere; a figure with sparsity among dense ones breaks it.
    for entry in entries():
        for narrow, wide in (("fp8", "bf16"), ("bf16", "tf32")):
            pair = {str(key): value for key, value in entry.tflops.items()}
            if {narrow, wide} <= pair.keys():
                assert pair[narrow] == pytest.approx(2 * pair[wide], rel=0.03), entry.chip


def test_each_chip_of_the_instance_table_has_an_entry() -> None:
    chips = {entry.chip.split()[0] for entry in entries()}
    assert {gpu.name for name in instance_names() if (gpu := instance(name).gpu)} <= chips


def test_each_entry_names_its_source() -> None:
    assert all(entry.source.startswith("NVIDIA") for entry in entries())


@pytest.mark.parametrize(
    ("name", "gib", "gb_per_second"), [("A100", 40, 1555), ("A100", 80, 2039), ("H100", 80, 3350), ("H200", 141, 4800)]
)
def test_memory_bandwidth_is_that_of_the_variant(name: str, gib: int, gb_per_second: float) -> None:
    gpu = chip_peak(name)
    assert gpu is not None
    assert gpu.memory_bytes_per_second(gib * 2**30) == gb_per_second * 1e9


def test_of_several_form_factors_the_rented_one_is_the_sxm_module() -> None:
    assert [gpu.chip for name in ("H100", "H200", "L4") if (gpu := chip_peak(name))] == ["H100 SXM", "H200 SXM", "L4"]
    assert chip_peak("H800") is None


def test_a_collective_takes_its_latency_and_a_time_for_each_byte() -> None:
    line = CollectiveTiming(latency_seconds=1e-3, bytes_per_second=1e9, ranks=2)
    assert line.seconds(0.0) == 1e-3
    assert line.seconds(2e6) == 3e-3
