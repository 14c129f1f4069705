"""Published measurements as workloads."""

import csv
import itertools
from pathlib import Path

import pytest

import convoy.planner
from convoy.config.errors import ConfigError
from convoy.model.counts import parameter_count
from convoy.planner.memory.rank import RELIABLE_SHARE, rank_memory
from convoy.planner.step.work import Kernels
from convoy.planner.validation.published import (
    MeasuredRun,
    least_recomputed_share,
    memory_of,
    published_runs,
    read_measured,
)
from tests.planner.workloads import LLAMA_8B, P5, workload

SHIPPED = Path(convoy.planner.__file__).with_name("validation") / "published.csv"
OTHERS = Path(__file__).parents[1] / "other_clusters.csv"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, **changed: str) -> Path:
    return write_rows(path, {**rows(SHIPPED)[0], **changed})


def write_rows(path: Path, *rows: dict[str, str], newline: str = "\n", before: str = "") -> Path:
    names = list(dict.fromkeys(itertools.chain.from_iterable(rows)))
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(before)
        writer = csv.DictWriter(file, names, restval="", lineterminator=newline)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.mark.parametrize("path", [SHIPPED, OTHERS])
def test_each_row_has_the_model_batch_and_machines_that_it_says(path: Path) -> None:
    for told, found in zip(rows(path), read_measured(path), strict=True):
        job = found.workload
        assert parameter_count(job.model) == pytest.approx(int(told["params"]), rel=0.01)
        assert job.ranks == int(told["gpus"])
        assert (job.passes, job.sequences_per_pass) == (int(told["grad_accum"]), int(told["micro_batch_per_gpu"]))
        assert found.source == told["source"]


def test_all_shipped_rows_are_read() -> None:
    assert len(published_runs()) == 127


def test_an_empty_network_is_the_usual_one_of_the_gpu(tmp_path: Path) -> None:
    def network(**changed: str) -> float:
        (found,) = read_measured(write(tmp_path / "one.csv", network_gbps_per_node="", **changed))
        return found.workload.machine.network_bytes_per_second * 8 / 1e9

    assert network(gpu="h100_80gb") == 3200
    assert network(gpu="a100_40gb") == network(gpu="a100_80gb") == 400


def test_how_it_was_trained_is_read(tmp_path: Path) -> None:
    changed = {
        "mlp_gated": "True", "n_kv_heads": "8", "sharding": "HYBRID_SHARD", "compile": "True", "mp_mode": "PURE",
        "activation_checkpointing": "selective", "precision": "bf16", "source": "elsewhere",
    }  # fmt: skip
    (found,) = read_measured(write(tmp_path / "one.csv", **changed))
    job = found.workload

    assert (job.model.mlp, job.model.norm, job.model.positions) == ("swiglu", "rmsnorm", "rotary")
    assert (job.model.kv_heads, job.parallel.strategy, job.train.compile) == (8, "hsdp", True)
    assert (job.train.reduce_dtype, job.train.activation_checkpointing) == ("bf16", "selective")
    assert (found.kernels.matmul, found.kernels.attention) == ("bf16", "sdpa")


def test_cells_may_be_empty_where_there_is_a_usual_value(tmp_path: Path) -> None:
    columns = ("n_kv_heads", "mp_mode", "compile", "activation_checkpointing")
    (found,) = read_measured(write(tmp_path / "one.csv", **dict.fromkeys(columns, "")))
    train = found.workload.train

    assert found.workload.model.kv_heads == found.workload.model.n_heads
    assert (train.reduce_dtype, train.compile, train.activation_checkpointing) == ("fp32", False, "none")


@pytest.mark.parametrize(
    ("changed", "strategy", "reshard", "matmul"),
    [
        ({"sharding": "full_shard", "precision": "BF16", "mlp_gated": "1"}, "fsdp", True, "bf16"),
        ({"sharding": "zero2", "precision": "fp16", "mlp_gated": "yes"}, "fsdp", False, "bf16"),
        ({"sharding": "HSDP", "precision": "fp8", "mlp_gated": "TRUE"}, "hsdp", True, "fp8"),
        ({"sharding": "", "precision": "", "grad_accum": "", "mlp_gated": "true"}, "fsdp", True, "bf16"),
    ],
)
def test_others_words_for_the_same_are_read(
    tmp_path: Path, changed: dict[str, str], strategy: str, reshard: bool, matmul: str
) -> None:
    (found,) = read_measured(write(tmp_path / "one.csv", **changed))
    job = found.workload

    assert (job.parallel.strategy, job.parallel.reshard_after_forward) == (strategy, reshard)
    assert (found.kernels.matmul, job.model.mlp, job.passes) == (matmul, "swiglu", 1)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "some.csv"
    file.write_text("model\n")
    with pytest.raises(ConfigError, match="no rows"):
        read_measured(file)


@pytest.mark.parametrize("rows", [published_runs(), read_measured(OTHERS)], ids=["shipped", "others"])
def test_each_run_fits(rows: list[MeasuredRun]) -> None:
    shares = {(row.name, row.workload.machine.gpu, row.workload.ranks): memory_of(row).share for row in rows}

    assert max(shares.values()) <= 1, max(shares, key=lambda run: shares[run])


def test_whole_blocks_that_are_computed_again_take_what_lies_between_none_and_all() -> None:
    job = workload(1, P5, LLAMA_8B, micro_batch=4, sequence_length=8192, activation_checkpointing="selective")

    def taken(share: float | None) -> float:
        return memory_of(MeasuredRun("", "", job, Kernels(whole_blocks=share), 1.0)).share

    assert taken(0.0) > taken(0.5) > taken(1.0)
    assert taken(0.5) == pytest.approx((taken(0.0) + taken(1.0)) / 2, rel=1e-3)
    needed = least_recomputed_share(job)
    assert 0 < needed < 1
    assert taken(needed) == pytest.approx(RELIABLE_SHARE, rel=1e-3)


def test_what_fits_anyway_needs_no_block_computed_again() -> None:
    assert least_recomputed_share(workload(1, P5, LLAMA_8B, micro_batch=1, sequence_length=512)) == 0


def test_selective_runs_that_do_not_fit_by_operators_computed_blocks_again() -> None:
    """LLaMA 2 70B on 128 A100: by operators it would take 1.16 of what there is."""
    rows = [row for row in read_measured(OTHERS) if row.workload.train.activation_checkpointing == "selective"]
    whole = {row.name for row in rows if not rank_memory(row.workload).fits}

    assert whole == {"llama2-70b"}
    assert all(row.kernels.whole_blocks for row in rows if not rank_memory(row.workload).fits)


def test_a_run_that_could_not_fit_does_not() -> None:
    job = workload(1, P5, LLAMA_8B, micro_batch=64, global_batch=512, sequence_length=65536)

    assert not memory_of(MeasuredRun("", "", job, Kernels(), 1.0)).fits
