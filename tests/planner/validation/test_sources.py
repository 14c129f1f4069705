"""What pages tell of their runs beside the columns."""

from collections import Counter
from pathlib import Path

import pytest

from convoy.planner.step.hardware import limited_rates, peak_rates
from convoy.planner.step.step_time import step_time
from convoy.planner.validation.published import MeasuredRun, published_runs, read_measured
from tests.planner.validation.test_published import OTHERS, write
from tests.planner.workloads import LLAMA_8B, P5, workload


def of(name: str, gpu: str) -> list[MeasuredRun]:
    rows = [*published_runs(), *read_measured(OTHERS)]
    return [row for row in rows if name in row.source and row.workload.machine.gpu == gpu]


def test_runs_of_may_2023_computed_blocks_again_to_their_end_and_later_ones_did_not() -> None:
    """torch 1.13 and 2.1. All that reduced in bf16 are of May: on A100 of 40 GB, and two of 80."""
    early = [row for row in of("llm-foundry", "A100") if not row.kernels.stops_early]

    assert len(early) == 51
    assert {row.workload.train.reduce_dtype for row in early} == {"bf16"}
    assert all(row.kernels.stops_early for row in of("llm-foundry", "H100") if row.kernels.matmul == "bf16")


def test_four_models_on_many_gpus_had_another_attention() -> None:
    flash = {row.name for row in of("llm-foundry", "H100") if row.kernels.attention == "sdpa"}

    assert flash == {"mpt-1b", "mpt-3b", "mpt-7b", "mpt-70b"}
    assert all(row.workload.ranks >= 128 for row in of("llm-foundry", "H100") if row.kernels.attention == "sdpa")
    assert not any(row.kernels.attention == "sdpa" for row in of("llm-foundry", "A100"))


def test_mpt_is_llm_foundry_s_whoever_tells_of_it(tmp_path: Path) -> None:
    (named,) = read_measured(write(tmp_path / "named.csv", model="MPT-70B"))
    (unnamed,) = read_measured(write(tmp_path / "unnamed.csv", source="", model="MPT-70B"))
    (other,) = read_measured(write(tmp_path / "other.csv", source="", model="gpt-70b"))

    assert named.kernels == unnamed.kernels != other.kernels


def test_a_model_called_mpt_of_other_software_has_kernels_as_most(tmp_path: Path) -> None:
    (own,) = read_measured(write(tmp_path / "own.csv", source="my runs with Megatron-LM", model="mpt-70b"))
    (other,) = read_measured(write(tmp_path / "other.csv", source="", model="gpt-70b"))

    assert own.kernels == other.kernels


def test_torchtitan_s_h100_are_slower_than_their_data_sheet() -> None:
    """2.4 TB/s, and 500 of 700 W: the clock goes with the cube root of power."""
    peaks = {row.machine for row in of("torchtitan", "H100")}
    (slow,) = peaks
    sheet = peak_rates(P5)

    assert slow is not None
    assert slow.memory_bytes_per_second == 2.4e12 < sheet.memory_bytes_per_second
    assert slow.flops == pytest.approx(sheet.flops * (500 / 700) ** (1 / 3))
    assert {row.machine for row in of("torchtitan", "A100")} == {None}


@pytest.mark.parametrize(
    ("source", "gpu", "held"),
    [
        ("pytorch/torchtitan benchmarks/llama3_h100_202412_torchtitan.md", "h100_80gb", True),
        ("torchtitan, our own", "h100_96gb", True),
        ("torchtitan, our own", "h100_80gb", False),
        ("our own", "h100_96gb", False),
    ],
)
def test_only_the_h100_of_torchtitan_s_page_are(tmp_path: Path, source: str, gpu: str, held: bool) -> None:
    (row,) = read_measured(write(tmp_path / "b.csv", source=source, gpu=gpu))

    assert (row.machine is not None) == held
    assert ("held to 500 W" in row.facts) == held


def test_what_a_column_has_is_not_taken_by_the_source(tmp_path: Path) -> None:
    source = "torchtitan benchmarks/llama3_h100_202412_torchtitan.md"
    (row,) = read_measured(write(tmp_path / "b.csv", source=source, gpu="h100_80gb", power_watts="650"))

    assert row.machine == limited_rates(row.workload.machine, 650.0, 2.4e12)
    assert row.facts[1:] == ("memory of 2.4 TB/s",)


def test_a_limit_of_power_slows_products_alone_and_one_above_the_data_sheet_nothing() -> None:
    job = workload(1, P5, LLAMA_8B)
    held, free = (
        step_time(job, machine=limited_rates(P5, 400.0, None)),
        step_time(job, machine=limited_rates(P5, 900.0, None)),
    )

    assert free == step_time(job)
    assert held.matmul > 1.1 * free.matmul
    assert held.memory == free.memory


def test_the_law_of_power_is_that_of_two_data_sheets() -> None:
    """H100 SXM and NVL, of the same chip: 989 TFLOP/s at 700 W, 835 at 400."""
    assert peak_rates(P5).flops * (400 / 700) ** (1 / 3) == pytest.approx(835.5e12, rel=0.03)


def test_each_shipped_run_has_the_day_on_which_its_page_got_it() -> None:
    """As counted in the history of the page: 51 runs, then 66, and 10 on 128 H100 and more."""
    days = Counter(str(row.publication.date) for row in published_runs() if row.publication)
    assert days == {"2023-05-03": 51, "2023-10-19": 66, "2024-01-06": 10}
    assert {row.publication for row in read_measured(OTHERS) if "llm-foundry" not in row.source} == {None}


def test_the_mfu_of_a_run_is_the_published_one() -> None:
    assert published_runs()[0].mfu == pytest.approx(0.4125)
