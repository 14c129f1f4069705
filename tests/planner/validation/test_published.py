"""Published measurements as workloads."""

import csv
from pathlib import Path

import pytest

import convoy.planner
from convoy.config.errors import ConfigError
from convoy.model.counts import parameter_count
from convoy.planner.validation.published import published, read_measured

SHIPPED = Path(convoy.planner.__file__).with_name("validation") / "published.csv"
OTHERS = Path(__file__).parents[1] / "other_clusters.csv"


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, **changed: str) -> Path:
    row = {**rows(SHIPPED)[0], **changed}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, row)
        writer.writeheader()
        writer.writerow(row)
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
    assert len(published()) == 127


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


@pytest.mark.parametrize(
    ("column", "value", "told"),
    [
        ("gpus", "many", "gpus = many: must be a number"),
        ("gpus", "2.5", "gpus = 2.5: must be a whole number"),
        ("gpus", "20", "gpus = 20: must be a multiple of gpus_per_node, 8"),
        ("seq_len", "0", "seq_len = 0: must be positive"),
        ("gpu", "h100", "gpu = h100: must be like a100_80gb"),
        ("gpu", "mi300_192gb", "gpu = mi300_192gb: the catalog has no machine with it"),
        ("sharding", "SOME", "sharding = SOME: must be one of full_shard, "),
        ("compile", "maybe", "compile = maybe: must be one of true, false"),
        ("n_heads", "7", "n_heads = 7: must divide d_model"),
    ],
)
def test_what_cannot_be_read_is_told_with_its_line(tmp_path: Path, column: str, value: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as error:
        read_measured(write(tmp_path / "one.csv", **{column: value}))
    assert "one.csv:2" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_column_and_an_empty_file_are_told(tmp_path: Path) -> None:
    file = tmp_path / "some.csv"
    file.write_text("model\nmine\n")
    with pytest.raises(ConfigError, match=r"some\.csv:2: no column gpu"):
        read_measured(file)
    file.write_text("model\n")
    with pytest.raises(ConfigError, match="no rows"):
        read_measured(file)
