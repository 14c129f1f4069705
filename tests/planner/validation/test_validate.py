"""How near predictions come, as `convoy plan validate` tells it."""

import json
import statistics
from pathlib import Path

import pytest
from click.testing import CliRunner

from convoy.cli.main import main
from convoy.planner.step.calibration import shipped_calibration
from convoy.planner.validation.published import published_runs, read_measured
from convoy.planner.validation.validate import p90_abs, validate
from tests.planner.validation.test_published import OTHERS, SHIPPED, write

pytestmark = pytest.mark.processes


def test_json_is_as_documented() -> None:
    result = CliRunner().invoke(main, ["plan", "validate", str(SHIPPED), "--json"])
    told = json.loads(result.stdout)

    assert set(told) == {
        "rows", "median_abs_pct_error", "p90_abs_pct_error", "baseline_median_abs_pct_error",
        "baseline_p90_abs_pct_error", "fits_predicted", "per_row",
    }  # fmt: skip
    assert set(told["per_row"][0]) == {"index", "predicted_tokens_per_s_per_gpu", "measured", "pct_error", "fits"}
    assert (told["rows"], [row["index"] for row in told["per_row"]]) == (127, list(range(127)))
    wrong = [row["pct_error"] for row in told["per_row"]]
    assert told["median_abs_pct_error"] == pytest.approx(statistics.median(map(abs, wrong)))
    row = told["per_row"][0]
    assert row["pct_error"] == pytest.approx(100 * (row["predicted_tokens_per_s_per_gpu"] / row["measured"] - 1))


def test_the_baseline_is_the_constant_hfu_of_each_gpu() -> None:
    """Its figures on these rows, as whoever collected them computed them, are 11.3 % and 25.5 % on others like them."""
    found = validate(published_runs(), published_runs(), shipped_calibration())

    assert found.baseline_median_abs_pct_error == pytest.approx(11.5, abs=0.1)
    assert found.baseline_p90_abs_pct_error == pytest.approx(26.2, abs=0.1)


def test_a_gpu_without_measurements_has_no_baseline(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["plan", "validate", str(write(tmp_path / "b.csv", gpu="h200_141gb")), "--json"])

    assert json.loads(result.stdout)["baseline_median_abs_pct_error"] is None


def test_the_terminal_says_which_rows_were_fitted_to_and_what_was_taken_by_their_sources() -> None:
    files = SHIPPED, OTHERS
    fitted, others = (
        " ".join(CliRunner().invoke(main, ["plan", "validate", str(file)]).stdout.split()) for file in files
    )

    assert "127 of the 127 rows are among those that it was fitted to" in fitted
    assert "fitted to" not in others
    assert "32 rows: nothing is known of the software" in others
    assert "4 rows: held to 500 W. 4 rows: memory of 2.4 TB/s." in others
    assert "llm-foundry: attention by Triton, whole blocks where it recomputes." in fitted
    assert "llm-foundry: attention by PyTorch." in fitted


def test_own_measurements_make_an_own_calibration(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    told = CliRunner().invoke(main, ["plan", "calibrate", str(OTHERS), str(own)])
    found = CliRunner().invoke(main, ["plan", "validate", str(OTHERS), "--json", "--calibration", str(own)])

    assert f"{own}: 32 runs, off by a median of " in told.stdout
    assert json.loads(found.stdout)["median_abs_pct_error"] < 4


def test_a_calibration_tells_which_rows_it_has_seen(tmp_path: Path) -> None:
    """Its own, whatever they are called and in whatever order; not those of another, nor one with another speed."""
    own, some = tmp_path / "own.json", tmp_path / "some.csv"
    lines = OTHERS.read_text().splitlines()
    some.write_text("\n".join([lines[0], *lines[6:26]]))
    CliRunner().invoke(main, ["plan", "calibrate", str(some), str(own)])

    def seen(file: Path, *options: str) -> str:
        return CliRunner().invoke(main, ["plan", "validate", str(file), *options]).stdout

    assert "20 of the 32 rows are among those that it was fitted to" in seen(OTHERS, "--calibration", str(own))
    assert "fitted to" not in seen(SHIPPED, "--calibration", str(own))
    renamed = tmp_path / "renamed.csv"
    renamed.write_text("\n".join([lines[0], *reversed(lines[6:26])]).replace("llama2", "LLaMA"))
    assert "20 of the 20 rows" in seen(renamed, "--calibration", str(own))
    faster = tmp_path / "faster.csv"
    faster.write_text("\n".join([lines[0], lines[6], lines[7].replace(",700,", ",701,")]))
    assert "1 of the 2 rows" in seen(faster, "--calibration", str(own))


def test_a_gpu_that_a_calibration_lacks_is_told_with_its_row(tmp_path: Path) -> None:
    alone = shipped_calibration().model_copy(update={"stands_for": {}})
    row = read_measured(write(tmp_path / "b.csv", gpu="h200_141gb"))
    with pytest.raises(ValueError, match="row 1: H200: the calibration of "):
        validate([*published_runs()[:1], *row], published_runs(), alone)


def test_what_is_no_calibration_is_told(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    result = CliRunner().invoke(main, ["plan", "validate", str(OTHERS), "--calibration", str(tmp_path / "bad.json")])

    assert result.exit_code == 2
    assert "bad.json: no calibration" in result.stderr


def test_percentiles_lie_between_values() -> None:
    assert p90_abs([-1.0]) == 1.0
    assert p90_abs([0.0, -10.0]) == pytest.approx(9.0)
