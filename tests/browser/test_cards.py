"""The cards of a real run, opened in a real browser."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from convoy.display.formatting import duration, rate, significant
from convoy.job.events.registry import Event
from convoy.report.fold import fold
from convoy.storage import open_store
from tests.browser.pages import check_contrast, screenshot, show, unfold
from tests.flows.places import REPOSITORY, Place
from tests.flows.runs import newest
from tests.report.plans import planned_here
from tests.report.synthetic import failed_job, restarted_job, running_job, write_log

pytestmark = pytest.mark.system

FLOW = Path(__file__).parent / "fixtures" / "card_flow.py"
LOGS: dict[str, Callable[[], list[Event]]] = {
    "running": running_job,
    "finished": restarted_job,
    "failed": failed_job,
}
STEPS = {"live": "start", "final": "final", "failed": "end"}
CURVE = ".vega-embed svg .mark-line path, .vega-embed svg .mark-symbol path"


@dataclass(frozen=True)
class Cards:
    """What a run of the fixture left: its output, and each page's card and live data."""

    output: str
    html: dict[str, Path]
    data: dict[str, Path]


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> Cards:
    """Cards of one run of the fixture flow, whose last step fails."""
    folder = tmp_path_factory.mktemp("cards")
    for name, job in LOGS.items():
        write_log(open_store(str(folder / "logs" / name)), job())
    (folder / "logs" / "plan.json").write_text(planned_here().model_dump_json())
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ,
        "PATH": path,
        "METAFLOW_USER": "tester",
        "METAFLOW_DATASTORE_SYSROOT_LOCAL": str(folder),
    }
    command = [sys.executable, str(FLOW), "run", "--logs", str(folder / "logs")]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120)
    output = run.stdout + run.stderr
    assert "the job failed, as recorded" in output, output
    run_folder = next(folder.glob(".metaflow/mf.cards/CardFlow/runs/*"))
    tasks = {page: next(run_folder.glob(f"steps/{step}/tasks/*")) for page, step in STEPS.items()}
    return Cards(
        output,
        {page: next(task.glob("cards/convoy_card-*.html")) for page, task in tasks.items()},
        {page: next(task.glob("runtime/convoy_card-*.data.json")) for page, task in tasks.items()},
    )


def _open(browser: webdriver.Chrome, card: Path, scheme: str, *, unfolded: bool = True) -> None:
    """Show the card in the colour scheme, wait until its charts have marks, and open what is folded."""
    show(browser, card, scheme)
    WebDriverWait(browser, 30).until(lambda b: b.find_elements(By.CSS_SELECTOR, CURVE))
    if unfolded:
        unfold(browser)


def _text(browser: webdriver.Chrome) -> str:
    return browser.find_element(By.CSS_SELECTOR, ".mf-card").text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("page", list(STEPS))
def test_each_card_reads_well_in_each_scheme(page: str, scheme: str, cards: Cards, browser: webdriver.Chrome) -> None:
    _open(browser, cards.html[page], scheme)
    assert len(screenshot(browser, f"{page}-{scheme}")) > 30_000
    texts = (".page > header h2", ".page h3", ".page .value-box-value", ".page td:last-child")
    check_contrast(browser, ".mf-card", scheme, *texts)


def test_the_final_card_has_the_loss_chart_the_numbers_and_the_sample_text(
    cards: Cards, browser: webdriver.Chrome
) -> None:
    _open(browser, cards.html["final"], "light")
    charts = browser.find_elements(By.CSS_SELECTOR, ".vega-embed")
    assert "Loss" in charts[0].text
    assert "nats per token" in charts[0].text
    assert len(charts[0].find_elements(By.CSS_SELECTOR, ".mark-symbol path")) >= 3
    line = charts[0].find_element(By.CSS_SELECTOR, ".mark-line path").get_attribute("d") or ""
    assert line.count("L") > 100
    assert all(chart.size["width"] > 300 for chart in charts)
    text = _text(browser)
    for part in ("2.03", "from 3.63, ratio 0.56", "10.2k tok/s", "40.9 %", "813 MB", "3.60 M parameters", "step 85 of"):
        assert part in text, part
    codes = [code.get_attribute("textContent") or "" for code in browser.find_elements(By.CSS_SELECTOR, "pre code")]
    assert (
        codes[0]
        == "def main(x) -> None:\n    for item in self._items[1:]:\n        print(`item` * 2)  # <b>not bold</b>"
    )
    assert any("global_batch: 8" in code for code in codes)


def test_the_final_card_has_predictions_beside_measurements_with_their_error(
    cards: Cards, browser: webdriver.Chrome
) -> None:
    _open(browser, cards.html["final"], "light")
    table = next(t for t in browser.find_elements(By.CSS_SELECTOR, "table") if "Predicted" in t.text)
    rows = [
        [cell.text for cell in row.find_elements(By.CSS_SELECTOR, "td")]
        for row in table.find_elements(By.CSS_SELECTOR, "tbody tr")
    ]
    plan, measured = planned_here(), fold(restarted_job(), 170).step_time
    assert plan.step is not None
    assert measured is not None
    (step,) = [row for row in rows if row[0] == "step"]
    assert step[1] == duration(plan.step.seconds)
    assert step[2] == "400 ms"
    assert step[3] == f"{100 * (plan.step.seconds / measured.total.median - 1):+.1f} %"
    assert [row[0] for row in rows[1:4]] == [
        "of it forward and backward", "of it optimizer", "of it batch, decisions, log",
    ]  # fmt: skip
    assert table.size["width"] <= browser.find_element(By.CSS_SELECTOR, ".page").size["width"]


def test_the_final_card_tells_what_failed_how_soon_it_got_on_and_where_the_time_went(
    cards: Cards, browser: webdriver.Chrome
) -> None:
    _open(browser, cards.html["final"], "light")
    text = _text(browser)
    for part in (
        "Incidents",
        "rank 1 on node 1 was killed by SIGKILL: MemoryError: <no room> for `x`",
        "restarted in place",
        "200 ms",
        "35 steps recomputed",
        "Goodput",
        "of 1 m 30 s, 2 generations, 1 incident",
    ):
        assert part in text, part
    bars = [chart for chart in browser.find_elements(By.CSS_SELECTOR, ".vega-embed") if "recomputed" in chart.text]
    assert len(bars) == 1
    assert len(bars[0].find_elements(By.CSS_SELECTOR, ".mark-rect path")) == 7


def test_the_final_card_of_a_training_run_shows_that_runs_own_numbers(
    browser: webdriver.Chrome, tmp_path: Path
) -> None:
    docs = f"data.corpus.kind=files data.corpus.path={REPOSITORY / 'docs'} data.tokenizer.kind=bytes"
    place = Place(tmp_path)
    run = newest(place, place.flow("run", overrides=f"{docs} model.vocab_size=257 evaluation.sample_tokens=12"))
    assert run.done.returncode == 0, run.done.stdout + run.done.stderr
    (card,) = tmp_path.glob(f".metaflow/mf.cards/TrainFlow/runs/{run.id}/steps/join/tasks/*/cards/*.html")

    _open(browser, card, "light")

    text, measured = _text(browser), run.data("metrics")["metrics"]
    assert significant(measured["bits_per_byte"]) in text
    assert f"from {significant(measured['initial_bits_per_byte'])}" in text
    assert rate(measured["tokens_per_second"]["median"]) in text
    assert "Loss" in browser.find_elements(By.CSS_SELECTOR, ".vega-embed")[0].text
    codes = [code.get_attribute("textContent") or "" for code in browser.find_elements(By.CSS_SELECTOR, "pre code")]
    assert codes[0].startswith("def main(")
    assert len(codes[0]) > len("def main(")
    _check_numbers_have_rows_of_their_own(browser)


def _check_numbers_have_rows_of_their_own(browser: webdriver.Chrome) -> None:
    """Nine numbers are three rows of three, and no chart beside one stretches it."""
    boxes = browser.find_elements(By.CSS_SELECTOR, ".value-box:not(.callout)")
    rows = sorted({box.location["y"] for box in boxes})
    assert [sum(box.location["y"] == y for box in boxes) for y in rows] == [3, 3, 3]
    assert max(box.size["height"] for box in boxes) < 1.5 * min(box.size["height"] for box in boxes)
    chart = browser.find_element(By.CSS_SELECTOR, ".vega-embed")
    assert chart.location["y"] >= max(box.location["y"] + box.size["height"] for box in boxes)


def test_headline_numbers_stand_side_by_side_and_charts_in_pairs(cards: Cards, browser: webdriver.Chrome) -> None:
    _open(browser, cards.html["live"], "light")
    boxes = browser.find_elements(By.CSS_SELECTOR, ".value-box")
    assert len({box.location["y"] for box in boxes}) == 1
    loss, throughput, parts = browser.find_elements(By.CSS_SELECTOR, ".vega-embed")
    assert loss.location["y"] == throughput.location["y"]
    assert parts.size["width"] > 1.8 * loss.size["width"]


@pytest.mark.parametrize("page", list(STEPS))
def test_a_chart_is_drawn_as_wide_as_its_place(page: str, cards: Cards, browser: webdriver.Chrome) -> None:
    """The first of a pair is drawn before the second one is there."""
    _open(browser, cards.html[page], "light", unfolded=False)
    for chart in browser.find_elements(By.CSS_SELECTOR, ".vega-embed"):
        drawn = chart.find_element(By.CSS_SELECTOR, "svg").size["width"]
        assert abs(drawn - chart.size["width"]) <= 1


def test_the_failed_card_starts_with_node_rank_and_last_lines(cards: Cards, browser: webdriver.Chrome) -> None:
    _open(browser, cards.html["failed"], "dark")
    callout = browser.find_element(By.CSS_SELECTOR, ".callout")
    assert "Rank 1 on node 1 failed at step 120" in callout.text
    assert "Killed by SIGKILL. MemoryError: <no room> for `x`." in callout.text
    assert "MemoryError: <no room> for `x`" in browser.find_element(By.CSS_SELECTOR, "pre code").text
    first_chart = browser.find_element(By.CSS_SELECTOR, ".vega-embed")
    assert callout.location["y"] < first_chart.location["y"]


@pytest.mark.parametrize("page", list(STEPS))
def test_a_card_is_short_before_anything_is_opened(page: str, cards: Cards, browser: webdriver.Chrome) -> None:
    _open(browser, cards.html[page], "light", unfolded=False)
    assert browser.execute_script("return document.documentElement.scrollHeight") < 3000


@pytest.mark.parametrize("page", list(STEPS))
def test_a_frame_that_follows_the_cards_height_settles_on_it(
    page: str, cards: Cards, browser: webdriver.Chrome
) -> None:
    """Metaflow's UI does that each second; its frame is about 1,000 pixels wide."""
    _open(browser, cards.html[page], "light", unfolded=False)
    height = 8000
    for _ in range(3):
        _resize(browser, height)
        height = _body_height(browser)
    last = browser.find_elements(By.CSS_SELECTOR, ".page > *")[-1]
    assert 0 <= height - (last.location["y"] + last.size["height"]) < 150
    size = browser.execute_script("const e = document.documentElement; return [e.scrollWidth, e.scrollHeight]")
    assert size == [1000, height]


def test_a_card_that_loads_again_keeps_the_height_of_its_frame(cards: Cards, browser: webdriver.Chrome) -> None:
    _open(browser, cards.html["live"], "light")
    _resize(browser, 2000)
    browser.execute_script("document.querySelector('.card_app').replaceChildren()")
    assert _body_height(browser) == 2000


def _resize(browser: webdriver.Chrome, height: int) -> None:
    metrics = {"width": 1000, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def _body_height(browser: webdriver.Chrome) -> int:
    """As Metaflow's UI measures it."""
    return int(browser.execute_script("const b = document.body; return Math.max(b.scrollHeight, b.offsetHeight)"))


def test_details_are_folded_until_the_reader_opens_them(cards: Cards, browser: webdriver.Chrome) -> None:
    _open(browser, cards.html["final"], "light", unfolded=False)
    events = browser.find_element(By.CSS_SELECTOR, "section[data-section-id=Events]")
    assert events.text == "Events"
    events.find_element(By.CSS_SELECTOR, "summary").click()
    assert "First step" in events.text


def test_links_lead_to_each_section(cards: Cards, browser: webdriver.Chrome) -> None:
    _open(browser, cards.html["final"], "light", unfolded=False)
    links = browser.find_elements(By.CSS_SELECTOR, "aside button")
    titles = browser.find_elements(By.CSS_SELECTOR, "section > .heading > h3")
    assert [link.text for link in links] == [title.get_attribute("textContent") for title in titles]
    links[-1].click()
    last = browser.find_elements(By.CSS_SELECTOR, "section")[-1]
    in_view = "const {top, bottom} = arguments[0].getBoundingClientRect(); return top >= 0 && bottom <= innerHeight + 1"
    WebDriverWait(browser, 10).until(lambda b: b.execute_script(in_view, last))


def test_a_card_asks_for_nothing_from_the_network(cards: Cards, browser: webdriver.Chrome) -> None:
    browser.get_log("performance")
    _open(browser, cards.html["final"], "light")
    requests = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    urls = [each["params"]["request"]["url"] for each in requests if each["method"] == "Network.requestWillBeSent"]
    assert urls[0] == cards.html["final"].as_uri()
    assert [url for url in urls[1:] if not url.startswith(("data:", "blob:"))] == []


def test_a_page_of_the_same_shape_keeps_its_components(cards: Cards) -> None:
    assert "same components: True" in cards.output


def test_the_browser_follows_new_data_without_a_reload(cards: Cards, browser: webdriver.Chrome) -> None:
    _open(browser, cards.html["live"], "light")
    data: dict[str, Any] = json.loads(cards.data["live"].read_text())["data"]
    for component in data.values():
        if component["type"] == "progressBar":
            component |= {"value": 91, "details": "a moment left"}
        if component.get("title") == "Training loss":
            component["value"] = "1.23"
    # A finished card takes no updates; the hook is Metaflow's own and is switched off only by the last script.
    runtime = cards.html["live"].read_text().replace("window.metaflow_card_update = undefined;", "")
    live = cards.html["live"].with_name("live.html")
    live.write_text(runtime)
    _open(browser, live, "light")
    browser.execute_script("window.metaflow_card_update(arguments[0])", data)
    WebDriverWait(browser, 10).until(lambda b: "a moment left" in _text(b))
    assert "91/170" in _text(browser)
    assert "1.23" in _text(browser)


def test_importing_metaflow_with_the_card_prints_nothing_and_does_not_load_torch() -> None:
    code = (
        "import metaflow, sys; from metaflow.plugins import CARDS;"
        "assert 'convoy_card' in [c.type for c in CARDS]; assert 'torch' not in sys.modules;"
        "import metaflow_extensions.convoy.plugins.cards.convoy.components"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
