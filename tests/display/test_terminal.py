"""The page in a terminal."""

from io import StringIO

from rich.console import Console

from convoy.display.formatting import sparkline
from convoy.display.page import Page, Table
from convoy.display.terminal import show
from convoy.report.fold import fold
from convoy.report.pages.train import final_page, live_page
from convoy.report.tail import event_lines
from tests.report.synthetic import CONFIG, failed_job, finished_job, running_job


def _shown(page: object, width: int = 110) -> str:
    out = StringIO()
    show(page, Console(file=out, width=width, force_terminal=False))  # type: ignore[arg-type]
    return out.getvalue()


def test_a_finished_job_shows_its_numbers_curves_and_text() -> None:
    text = _shown(final_page(fold(finished_job(), 170), CONFIG, {"Model": "/jobs/a/model"}))
    for part in ("10.2k tok/s", "ratio 0.56", "█", "def main(x) -> None:", "/jobs/a/model", "global_batch: 8"):
        assert part in text


def test_a_path_longer_than_a_line_is_shown_whole() -> None:
    path = "/jobs/" + 40 * "long/"
    text = _shown(final_page(fold(finished_job(), 170), CONFIG, {"Model": path}), width=80)
    assert path in "".join(text.split())


def test_no_heading_of_a_wide_table_is_cut() -> None:
    headers = ("Market", "Time", "Cost", "Range", "Not productive", "Interruptions", "Price of a machine")
    row = ("capacity block", "11.3 days", "10,731 USD", "7,086 USD to 15,153 USD", "0.0634 %", "0.17", "21.96 USD/h")
    text = _shown(Page("wide", (Table(headers, (row,)),)), width=80)
    assert all(word in text for header in headers for word in header.split())


def test_square_brackets_of_a_log_are_text_and_not_markup() -> None:
    events = [
        e.model_copy(update={"log_tail": "[bold]x[/red]", "reason": "[/red] bad"}) if e.kind == "worker_exited" else e
        for e in failed_job()
    ]
    text = _shown(live_page(fold(events, 170), CONFIG))
    assert "[bold]x[/red]" in text
    assert "[/red] bad" in text


def test_progress_is_shown_with_the_time_left() -> None:
    text = _shown(live_page(fold(running_job(), 170), CONFIG))
    assert "90 of 170" in text
    assert "s left" in text


def test_a_sparkline_goes_from_the_lowest_to_the_highest_bar() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7], 8) == "▁▂▃▄▅▆▇█"
    assert len(sparkline(list(range(1000)), 40)) == 40
    assert sparkline([3, 3], 8) == "▁▁"
    assert sparkline([], 8) == ""


def test_what_a_worker_printed_cannot_steer_the_terminal() -> None:
    """It could change the title, hide lines, or write to the clipboard."""
    text = "\x1b]0;title\x07\x1b[31mred\x9b2J\u202e\r\0\tend"
    events = [
        e.model_copy(update={"log_tail": f"line\n{text}", "reason": text}) if e.kind == "worker_exited" else e
        for e in failed_job()
    ]
    shown = _shown(live_page(fold(events, 170), CONFIG)) + "".join(event_lines(events))
    assert all(char.isprintable() or char in "\n\t" for char in shown)
    assert shown.count(r"\x1b[31mred\x9b2J\u202e\r\x00") >= 3
