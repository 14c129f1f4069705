"""Measured runs as others write them down: read right, or refused with file, line and column."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from convoy.cli.main import main
from convoy.config.errors import ConfigError
from convoy.planner.memory.rank import rank_memory
from convoy.planner.step.calibration import shipped_calibration
from convoy.planner.step.step_time import gpu_tokens_per_second, step_time
from convoy.planner.validation.published import MeasuredRun, memory_of, read_measured
from tests.campaign import examples
from tests.planner.validation.test_published import write_rows

pytestmark = pytest.mark.campaign

LLAMA_8B = {
    "model": "Llama 3.1 8B", "n_layers": "32", "d_model": "4096", "n_heads": "32", "n_kv_heads": "8",
    "mlp_hidden": "14336", "mlp_gated": "True", "vocab_size": "128256", "params": "8030261248", "seq_len": "8192",
    "gpu": "h100_80gb", "gpus": "64", "gpus_per_node": "8", "micro_batch_per_gpu": "1", "tokens_per_s_per_gpu": "7000",
}  # fmt: skip
GPT_3B = LLAMA_8B | {
    "model": "GPT-3 2.7B", "n_heads": "32", "n_kv_heads": "", "d_model": "2560", "mlp_hidden": "10240",
    "mlp_gated": "False", "vocab_size": "50257", "params": "2651837440", "seq_len": "2048",
}  # fmt: skip

PLAUSIBLE: dict[str, dict[str, str]] = {
    "as little as can be told": {},
    "H200": {"gpu": "h200_141gb", "micro_batch_per_gpu": "4"},
    "A100 of 80 GB": {"gpu": "A100-80GB"},
    "A100 of 40 GB": {**GPT_3B, "gpu": "NVIDIA A100-SXM4-40GB"},
    "B200": {"gpu": "b200_180gb"},
    "one GPU": {**GPT_3B, "gpus": "1", "gpus_per_node": "1", "sharding": "NO_SHARD"},
    "a part of a machine": {"gpus": "4", "activation_checkpointing": "full"},
    "512 GPUs": {"gpus": "512", "network_gbps_per_node": "1600"},
    "short sequences, many": {**GPT_3B, "seq_len": "512", "micro_batch_per_gpu": "64"},
    "a long sequence": {"seq_len": "65536", "activation_checkpointing": "full"},
    "fp8": {"precision": "FP8", "compile": "yes"},
    "hybrid": {"sharding": "HYBRID_SHARD", "compile": "TRUE", "activation_checkpointing": "selective"},
    "hybrid, gradients": {"sharding": "_HYBRID_SHARD_ZERO2"},
    "ZeRO-2": {"sharding": "zero-2", "grad_accum": "8", "mp_mode": "pure"},
    "DDP": {**GPT_3B, "sharding": "DDP"},
    "checkpointing as a switch": {"activation_checkpointing": "True"},
    "selective, with utilisations": {
        "activation_checkpointing": "selective", "mfu_percent": "38", "hfu_percent": "47",
    },
    "utilisations that rounding turned round": {
        "activation_checkpointing": "Selective", "mfu_percent": "40", "hfu_percent": "39",
    },
    "a batch in place of passes": {"global_batch": "256", "grad_accum": ""},
    "a batch that passes do not divide": {"global_batch": "200", "micro_batch_per_gpu": "2", "gpus": "8"},
    "columns that nobody knows": {"notes": "fast, really", "loss": "nan", "": "x"},
    "limited power": {"power_watts": "500", "memory_gb_per_second": "2400"},
    "an untold number of parameters": {"params": ""},
    "all blank that may be": dict.fromkeys(
        ["source", "network_gbps_per_node", "precision", "mp_mode", "sharding", "compile", "gpus_per_node", "params",
         "activation_checkpointing", "grad_accum", "global_batch", "mfu_percent", "hfu_percent"], ""),
}  # fmt: skip


def predicted(row: MeasuredRun) -> float:
    return gpu_tokens_per_second(row.workload, step_time(row.workload, shipped_calibration(), row.kernels, row.machine))


def test_plausible_rows_are_read_and_planned(tmp_path: Path) -> None:
    told = [LLAMA_8B | changed for changed in PLAUSIBLE.values()]
    for row, cells in zip(read_measured(write_rows(tmp_path / "runs.csv", *told)), told, strict=True):
        assert row.workload.ranks == int(cells["gpus"])
        assert 50 < predicted(row) < 60_000
        assert memory_of(row).share > 0


def test_a_file_of_them_is_validated_whole(tmp_path: Path) -> None:
    file = write_rows(tmp_path / "runs.csv", *(LLAMA_8B | changed for changed in PLAUSIBLE.values()))
    found = CliRunner().invoke(main, ["plan", "validate", str(file), "--json"])

    told = json.loads(found.stdout)
    assert told["rows"] == len(PLAUSIBLE) == len(told["per_row"])
    assert all(math.isfinite(row["pct_error"]) for row in told["per_row"])


def test_line_ends_and_a_spreadsheet_s_mark_do_not_matter(tmp_path: Path) -> None:
    plain = write_rows(tmp_path / "a.csv", LLAMA_8B)

    assert read_measured(plain) == read_measured(
        write_rows(tmp_path / "b.csv", LLAMA_8B, newline="\r\n", before="\ufeff")
    )


def test_the_order_of_columns_case_blanks_and_empty_lines_do_not_matter(tmp_path: Path) -> None:
    turned = {f" {name.upper()} ": f"  {value} " for name, value in reversed(LLAMA_8B.items())}
    plain, other = write_rows(tmp_path / "a.csv", LLAMA_8B), write_rows(tmp_path / "b.csv", turned)
    other.write_text(other.read_text() + "\n" + "," * (len(turned) - 1) + "\n")

    assert read_measured(plain) == read_measured(other)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"gpu": ""}, "gpu: required, but missing"),
        ({"gpu": "tpu_v5"}, "gpu = tpu_v5: must be like a100_80gb"),
        ({"gpu": "v100_32gb"}, "gpu = v100_32gb: the catalog has no machine with it"),
        ({"gpu": "a100_80gb", "precision": "fp8"}, "precision = fp8: A100 has no fp8"),
        ({"precision": "int8"}, "precision = int8: must be one of bf16, "),
        ({"activation_checkpointing": "sometimes"}, "activation_checkpointing = sometimes: must be one of none, "),
        ({"tokens_per_s_per_gpu": ""}, "tokens_per_s_per_gpu: required, but missing"),
        ({"tokens_per_s_per_gpu": "7,000"}, "tokens_per_s_per_gpu = 7,000: must be a number"),
        ({"micro_batch_per_gpu": "0.5"}, "micro_batch_per_gpu = 0.5: must be an integer"),
        ({"network_gbps_per_node": "-1"}, "network_gbps_per_node = -1: must be more than 0"),
        ({"seq_len": "nan"}, "seq_len = nan: must be an integer"),
        ({"gpus": "12"}, "gpus = 12: must be a multiple of gpus_per_node, 8"),
        ({"global_batch": "32"}, "global_batch = 32: must be at least gpus, 64"),
        ({"sharding": "SOME"}, "sharding = some: must be one of full_shard, "),
        ({"compile": "maybe"}, "compile = maybe: must be true or false"),
        ({"n_heads": "7"}, "n_heads = 7: must divide d_model"),
        ({"n_kv_heads": "5"}, "n_kv_heads = 5: must divide n_heads, 32"),
        ({"n_layers": "1e99"}, "n_layers = 1e99: must be an integer"),
        ({"power_watts": "much"}, "power_watts = much: must be a number"),
        ({"gpu": "a10g_24gb", "power_watts": "150"}, "A10G: its power is not in the catalog"),
    ],
)
def test_what_is_wrong_is_told_with_its_line_and_column(changed: dict[str, str], told: str, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "runs.csv", LLAMA_8B, LLAMA_8B | changed)
    result = CliRunner().invoke(main, ["plan", "validate", str(file)])

    assert result.exit_code == 2
    assert f"runs.csv:3: {told}" in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize("column", ["n_layers", "mlp_gated", "gpu", "gpus", "seq_len", "tokens_per_s_per_gpu"])
def test_a_column_that_must_be_there_is_named(column: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{column}: required, but missing"):
        read_measured(
            write_rows(tmp_path / "runs.csv", {name: cell for name, cell in LLAMA_8B.items() if name != column})
        )


def test_lines_that_do_not_fit_their_header_are_told(tmp_path: Path) -> None:
    file = tmp_path / "runs.csv"
    header = ",".join(LLAMA_8B)
    file.write_text(f"{header}\n{','.join(LLAMA_8B.values())},more\n")
    with pytest.raises(ConfigError, match=r"runs\.csv:2: 16 cells, but the file has 15 columns"):
        read_measured(file)
    file.write_text(f"{header},Gpu\n{','.join(LLAMA_8B.values())},a100_80gb\n")
    with pytest.raises(ConfigError, match="column gpu: there are two of it"):
        read_measured(file)
    file.write_bytes("gpu\nä\n".encode("utf-16"))
    with pytest.raises(ConfigError, match=r"runs\.csv: "):
        read_measured(file)


@given(
    st.fixed_dictionaries(
        {
            "gpu": st.sampled_from(["a100_40gb", "a100_80gb", "h100_80gb", "h200_141gb"]),
            "gpus": st.sampled_from(["1", "2", "8", "16", "64", "512"]),
            "micro_batch_per_gpu": st.integers(1, 64).map(str),
            "seq_len": st.sampled_from(["512", "2048", "8192", "65536"]),
            "sharding": st.sampled_from(["", "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "NO_SHARD"]),
            "activation_checkpointing": st.sampled_from(["", "none", "selective", "full"]),
            "compile": st.sampled_from(["", "True", "False"]),
            "mp_mode": st.sampled_from(["", "PURE", "DEFAULT"]),
        }
    ),
    st.sampled_from([LLAMA_8B, GPT_3B]),
)
@examples(60)
def test_any_such_row_has_a_speed_and_what_ran_selectively_fits(
    tmp_path_factory: pytest.TempPathFactory, changed: dict[str, str], base: dict[str, str]
) -> None:
    (row,) = read_measured(write_rows(tmp_path_factory.mktemp("rows") / "runs.csv", base | changed))

    assert 0 < predicted(row) < 200_000
    if changed["activation_checkpointing"] == "selective":
        full = row.workload.train.model_copy(update={"activation_checkpointing": "full"})
        least = rank_memory(dataclasses.replace(row.workload, train=full))
        assert memory_of(row).fits or not least.reliable
