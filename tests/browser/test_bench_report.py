"""The HTML report of a benchmark, opened from its file in a real browser without a network."""

import base64
import subprocess
import sys
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from convoy.benchmark.results.files import write_case
from tests.benchmark.cases import SECTIONS, runs_of, throughput, whole
from tests.browser.pages import check_contrast, luminances, screenshot, show, unfold

pytestmark = pytest.mark.system

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "generate_report.py"
PAPER = 718
"""Pixels of A4 between its margins."""

HISTORY = [4600.0, 4610.0] * 6 + [4080.0, 4090.0] * 2


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As a user makes it, with a history in which the main case became slower."""
    folder = tmp_path_factory.mktemp("bench")
    for case in whole():
        write_case(folder / "results", case)
    words: list[str] = []
    for i, run in enumerate(runs_of(throughput()[0], HISTORY)):
        write_case(folder / f"earlier-{i}", run)
        words += ["--earlier", str(folder / f"earlier-{i}")]
    made = folder / "report.html"
    command = [sys.executable, str(SCRIPT), str(folder / "results"), "--output", str(made), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return made


def _open(browser: webdriver.Chrome, report: Path, scheme: str = "light", width: int = 1200) -> None:
    show(browser, report, scheme, width)
    unfold(browser)


def _fits(browser: webdriver.Chrome) -> bool:
    """Nothing lies right of the page."""
    script = "const page = document.documentElement; return page.scrollWidth <= page.clientWidth"
    return bool(browser.execute_script(script))


def _headings(browser: webdriver.Chrome) -> list[str]:
    return [heading.text for heading in browser.find_elements(By.CSS_SELECTOR, "h1, h2")]


def _section(browser: webdriver.Chrome, title: str) -> webdriver.remote.webelement.WebElement:
    found = browser.find_elements(By.CSS_SELECTOR, "section")
    return next(section for section in found if section.text.startswith(title))


def test_every_section_is_there_in_order(report: Path, browser: webdriver.Chrome) -> None:
    _open(browser, report)
    at = SECTIONS.index("Step time")
    assert _headings(browser) == [*SECTIONS[:at], "History", *SECTIONS[at:]]
    for link in browser.find_elements(By.CSS_SELECTOR, "nav a"):
        target = (link.get_attribute("href") or "").rpartition("#")[2]
        section = browser.find_element(By.ID, target).find_element(By.XPATH, "ancestor-or-self::section")
        assert section.text.startswith(link.text)


def test_a_link_opens_the_section_that_it_leads_to(report: Path, browser: webdriver.Chrome) -> None:
    _open(browser, report)
    browser.get(report.as_uri())  # closed, as a reader finds it
    assert browser.find_element(By.CSS_SELECTOR, "details:has([id^=provenance])").text == "Provenance"
    browser.find_element(By.LINK_TEXT, "Provenance").click()
    assert "torch" in browser.find_element(By.CSS_SELECTOR, "details[open]").text


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_reads_well_in_each_scheme(scheme: str, report: Path, browser: webdriver.Chrome) -> None:
    _open(browser, report, scheme)
    screenshot(browser, f"bench-{scheme}")
    check_contrast(browser, "body", scheme, "h1", "h2", "p", "td", "th", "dd", "dt", "aside strong", "nav a")
    (background,) = luminances(browser, "body", "backgroundColor")
    assert all(abs(ink - background) > 0.3 for ink in luminances(browser, "figure svg text", "fill"))


def test_charts_are_seen_in_pairs_and_not_cut(report: Path, browser: webdriver.Chrome) -> None:
    _open(browser, report)
    for title in ("Throughput", "Strategies side by side", "Scaling", "Memory", "History"):
        assert _section(browser, title).find_elements(By.CSS_SELECTOR, "figure svg .role-mark path"), title
    rates, speedups = _section(browser, "Throughput").find_elements(By.CSS_SELECTOR, "figure")
    assert rates.location["y"] == speedups.location["y"]
    assert rates.size["width"] > 450
    for name in ("ours", "fused AdamW", "eager", "baseline"):
        assert name in rates.text
    assert _fits(browser)


def test_what_matters_is_told(report: Path, browser: webdriver.Chrome) -> None:
    _open(browser, report)
    callout = browser.find_element(By.CSS_SELECTOR, "aside.bad")
    assert "zero-3 (strategies, gpt-1b): losses differ from those of ddp" in callout.text
    assert callout.location["y"] < browser.find_element(By.CSS_SELECTOR, ".values").location["y"]
    assert "no difference detected" in _section(browser, "Throughput").text
    assert "REGRESSION by 1" in _section(browser, "History").text
    assert "needs 80 GB, has 40 GB" in _section(browser, "Refused and failed").text
    assert "2026-11-09, AWS price list" in _section(browser, "Cost and time to train").text


def test_a_phone_shows_it_in_one_column(report: Path, browser: webdriver.Chrome) -> None:
    _open(browser, report, width=420)
    rates, speedups = _section(browser, "Throughput").find_elements(By.CSS_SELECTOR, "figure")
    assert rates.location["y"] < speedups.location["y"]
    assert rates.size["width"] <= 420
    assert _fits(browser)


def test_nothing_is_asked_for_and_nothing_complains(report: Path, browser: webdriver.Chrome) -> None:
    browser.get_log("performance")
    browser.get_log("browser")
    _open(browser, report)
    asked = [
        entry["message"] for entry in browser.get_log("performance") if "Network.requestWillBeSent" in entry["message"]
    ]
    assert all(report.as_uri() in message for message in asked)
    assert len(asked) == 1
    assert browser.get_log("browser") == []


def test_it_prints_on_white_paper_without_the_links(report: Path, browser: webdriver.Chrome) -> None:
    _open(browser, report, "dark", width=PAPER)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    screenshot(browser, "bench-print", PAPER)
    assert _fits(browser)
    assert luminances(browser, "body", "backgroundColor")[0] > 0.9
    assert all(ink < 0.6 for ink in luminances(browser, "td", "color"))
    assert not browser.find_element(By.CSS_SELECTOR, "nav").is_displayed()
    paper = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
    assert paper.startswith(b"%PDF")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
