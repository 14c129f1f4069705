"""Figures are read with their units, and are as exact as their digits."""

import pytest

from convoy.audit.claims import read_entries
from convoy.audit.facts import model_size
from convoy.audit.machines import find_machine, gpu_kind
from convoy.audit.quantities.number import read_number
from convoy.audit.quantities.units import parse_figure

READ: list[tuple[str, str, float, str]] = [
    ("exact", "32 GPUs", 32, ""),
    ("exact", "16k GPUs", 16384, ""),
    ("gpu_hours", "42.7k GPU hours", 42700, ""),
    ("gpu_hours", "1.3M A100-hours", 1.3e6, ""),
    ("gpu_hours", "100 GPU-days", 2400, ""),
    ("count", "1 T", 1e12, ""),
    ("count", "143k steps", 143e3, ""),
    ("count", "1.4 trillion tokens", 1.4e12, ""),
    ("count", "1.4 × 10^12", 1.4e12, ""),
    ("size", "6.74 B parameters", 6.74e9, ""),
    ("exact", "4k", 4096, ""),
    ("batch", "4M tokens", 4e6, "tokens"),
    ("batch", "0.5M-token", 5e5, "tokens"),
    ("batch", "512 sequences", 512, "sequences"),
    ("rate", "145,267 tokens/s", 145267, ""),
    ("rate", "4,540 tokens/s/GPU", 4540, "gpu"),
    ("rate", "4540 tokens per second per GPU", 4540, "gpu"),
    ("rate", "4.54k tokens/GPU/s", 4540, "gpu"),
    ("rate", "36,320 tokens/s per node", 36320, "node"),
    ("rate", "12.55 B tokens per day", 12.55e9 / 86400, ""),
    ("time", "57 h", 205200, ""),
    ("time", "2.83 s/step", 2.83, ""),
    ("time", "every 30 minutes", 1800, ""),
    ("time", "42,156.7 µs", 0.0421567, ""),
    ("bytes", "84 GB", 84e9, ""),
    ("bytes", "40 GiB", 40 * 2**30, ""),
    ("bytes", "36.2 GB per GPU", 36.2e9, "gpu"),
    ("bytes", "2 GB/rank", 2e9, "gpu"),
    ("bytes", "21 GB per node", 21e9, "node"),
    ("bandwidth", "400 Gbit/s", 50e9, ""),
    ("bandwidth", "400 Gbps", 50e9, ""),
    ("bandwidth", "3.2 Tb/s", 400e9, ""),
    ("bandwidth", "3.2 Tbps aggregate", 400e9, ""),
    ("exact", "8 GPUs/node", 8, ""),
    ("bandwidth", "50 GBps per node", 50e9, "node"),
    ("money", "$140,000", 140000, ""),
    ("money", "1.2M USD", 1.2e6, ""),
    ("price", "$2.74 per GPU-hour", 2.74, "gpu"),
    ("price", "$2.74/GPU/hour", 2.74, "gpu"),
    ("price", "$32.77 per hour per instance", 32.77, "node"),
    ("unit_price", "$0.89 per 1 B tokens", 0.89e-9, ""),
    ("unit_price", "$0.17 per 1M tokens", 0.17e-6, ""),
    ("unit_price", "0.17", 0.17e-6, ""),
    ("share", "45 %", 0.45, ""),
    ("share", "0.45", 0.45, ""),
    ("ratio", "3.6x", 3.6, ""),
    ("count", "300B tokens (180B unique)", 3e11, ""),
    ("bytes", "70.3GiB (74%)", 70.3 * 2**30, ""),
    ("flops", "380 BF16 TFLOPs", 380e12, ""),
    ("size", "671B total", 671e9, ""),
    ("flops", "312 TFLOP/s", 312e12, ""),
    ("flops", "157 TFLOPS/GPU", 157e12, ""),
    ("flops", "157", 157e12, ""),
    ("flop", "6.3e22 FLOPs", 6.3e22, ""),
]


@pytest.mark.parametrize(("dimension", "text", "value", "per"), READ)
def test_a_figure_is_read(dimension: str, text: str, value: float, per: str) -> None:
    found = parse_figure(dimension, text)
    assert found.value == pytest.approx(value)
    assert found.per == per
    assert found.low <= found.value <= found.high


@pytest.mark.parametrize(
    ("dimension", "text"),
    [("time", "57"), ("time", "57 parsecs"), ("bandwidth", "380"), ("bandwidth", "380 GB"), ("money", "€5"),
     ("rate", "145,267 tokens"), ("count", "many"), ("share", "45 h"), ("unit_price", "$1 per hour"), ("exact", "1/2"),
     ("exact", "2 million"), ("exact", "8 × 8 A100"), ("gpu_hours", "184 dollars")],
)  # fmt: skip
def test_what_is_no_such_figure_is_refused(dimension: str, text: str) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        parse_figure(dimension, text)


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("57", 56.5, 57.5),
        ("57.0", 56.95, 57.05),
        ("140,000", 135_000, 145_000),
        ("100", 95, 105),
        ("0.89", 0.885, 0.895),
        ("up to 57", 0, 57.5),
        ("about 50", 45, 55),
        ("55-60", 54.5, 63),
        ("145267 ± 300", 144_667, 145_867),
    ],
)
def test_the_digits_tell_how_exact_a_figure_is(text: str, low: float, high: float) -> None:
    span = read_number(text).span
    assert [span.low, span.high] == pytest.approx([low, high])


def test_a_size_with_few_digits_is_a_name() -> None:
    seven = parse_figure("size", "7B")
    assert seven.low < 6.66e9 < 7.3e9 < seven.high
    assert parse_figure("size", "6.74B").low > 6.7e9


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Llama-2-7B", 7e9),
        ("GPT-3 175B", 175e9),
        ("GPT-2 124M", 124e6),
        ("Mixtral 8x7B", None),
        ("GPT-4", None),
        ("Qwen3-30B-A3B", None),
        ("DeepSeekMoE 16B", None),
        ("Llama 4 Scout 17B-16E", None),
        ("1.3 billion GPT", 1.3e9),
        ("a 175-billion-parameter model", 175e9),
    ],
)
def test_the_size_of_a_model_is_in_its_name(name: str, size: float | None) -> None:
    found = model_size(name)
    assert (found.value if found else None) == size


@pytest.mark.parametrize(
    ("text", "tflops", "gib"),
    [("A100-40", 312, 40), ("NVIDIA A100-SXM4-80GB", 312, 80), ("H100", 989.4, 80), ("H100 PCIe", 756, 80),
     ("H200", 989.4, 141), ("L4", 121, 22.4)],
)  # fmt: skip
def test_a_gpu_is_known_by_its_usual_names(text: str, tflops: float, gib: float) -> None:
    kind = gpu_kind(text)
    assert kind is not None
    peak = kind.peak("bf16")
    assert peak is not None
    assert peak.value == pytest.approx(tflops * 1e12)
    assert kind.memory is not None
    assert kind.memory.high / 2**30 == pytest.approx(gib, rel=0.02)


def test_what_the_catalog_does_not_have_is_none() -> None:
    assert gpu_kind("MI300X") is None
    assert find_machine("p99.24xlarge") is None
    assert find_machine("Standard_ND96") is None


def test_an_instance_is_known_by_its_family() -> None:
    texts = ("p4d", "P4d.24xlarge", "p4d.24xlarge (8x A100 40GB)", "ml.p4d.24xlarge")
    for text, name in (*((text, "p4d.24xlarge") for text in texts), ("p5", "p5.48xlarge")):
        found = find_machine(text)
        assert found is not None
        assert found.name == name


def test_a_figure_may_be_told_more_than_once() -> None:
    run = read_entries("runs", {"throughput": ["145,267 tokens/s", "133,892 tokens/s"]}, "")
    assert [each.value for each in run.figures("throughput")] == [145267, 133892]
