"""A page as one HTML file."""

import re
from html.parser import HTMLParser

import pytest

from convoy.benchmark.page import benchmark_page
from convoy.display.html import HALF, WIDE, draw_svg, to_html
from convoy.display.page import (
    Chart,
    Heading,
    Page,
    Text,
)
from convoy.report.fold import fold
from convoy.report.pages.train import final_page
from tests.benchmark.cases import a_case, whole
from tests.display.blocks import every_block
from tests.report.synthetic import CONFIG, finished_job

EVIL = "<script>alert('x')</script>\"&'><img src=x onerror=alert(1)>"
VOID = {"meta", "img", "br", "hr", "link", "input"}


class _Reader(HTMLParser):
    """Tags in order; every one that is opened must be closed where it was."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.attributes: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def _read(html: str) -> _Reader:
    reader = _Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def _named(chart: Chart, width: int) -> str:
    return f"<svg>{chart.title} {width}</svg>"


def test_text_of_any_origin_is_text_in_every_kind_of_block() -> None:
    page = Page(EVIL, (Heading(EVIL, level=1), *every_block(EVIL)))
    reader = _read(to_html(page, lambda chart, width: "<svg></svg>"))
    assert {"script", "img"}.isdisjoint(reader.tags)
    assert "onerror" not in reader.attributes
    assert "".join(reader.text).count(EVIL) == 17


def test_hostile_names_of_cases_are_text_in_charts_too() -> None:
    cases = [a_case(EVIL, 0.5, baseline=None, group=EVIL), a_case(f"{EVIL} 2", 0.6, baseline=EVIL, group=EVIL)]
    reader = _read(to_html(benchmark_page(cases), draw_svg))
    assert {"script", "img"}.isdisjoint(reader.tags)
    assert "onerror" not in reader.attributes
    assert "svg" in reader.tags


def test_the_file_needs_nothing_else() -> None:
    html = to_html(benchmark_page(whole()), draw_svg)
    reader = _read(html)
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(reader.tags)
    assert {"src", "href"} & set(reader.attributes) == {"href"}
    assert all(target.startswith("#") for target in re.findall(r'\bhref="([^"]*)"', html))
    assert set(re.findall(r"https?://[^\s\"'<]+", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "url(" not in html
    assert "@import" not in html


@pytest.mark.processes
def test_the_same_cases_give_the_same_bytes() -> None:
    first = to_html(benchmark_page(whole()), draw_svg)
    assert to_html(benchmark_page(whole()[::-1]), draw_svg) == first


def test_charts_stand_in_pairs_and_one_alone_has_the_whole_width() -> None:
    charts = tuple(Chart(name, {}) for name in "abc")
    html = to_html(Page("x", (Heading("x"), *charts, Text("between"), *charts[:2])), _named)
    assert re.findall(r"<svg>(\w) (\d+)</svg>", html) == [
        ("a", str(HALF)), ("b", str(HALF)), ("c", str(WIDE)), ("a", str(HALF)), ("b", str(HALF)),
    ]  # fmt: skip


def test_each_section_is_linked_to_though_two_have_one_name() -> None:
    html = to_html(Page("x", (Heading("x", level=1), Heading("Same"), Heading("Same"), Heading("§"))), _named)
    targets, names = re.findall(r'href="#([^"]*)"', html), re.findall(r'<section id="([^"]*)"', html)
    assert len(set(targets)) == 3
    assert set(targets) <= set(names)


def test_a_folded_section_is_closed_and_a_link_to_it_leads_inside() -> None:
    html = to_html(Page("x", (Heading("Open"), Text("a"), Heading("Shut", folded=True), Text("b"))), _named)
    assert _read(html).tags.count("details") == 1
    closed = html[html.index("<details>") : html.index("</details>")]
    target = re.findall(r'href="#([^"]*)"', html)[1]
    assert f'<div id="{target}">\n<p>b</p>' in closed
    assert "<p>a</p>" not in closed


def test_a_training_page_is_drawn_too() -> None:
    reader = _read(to_html(final_page(fold(finished_job(), 170), CONFIG, {"Model": "/jobs/a/model"}), draw_svg))
    text = "".join(reader.text)
    assert "10.2k tok/s" in text
    assert "/jobs/a/model" in text
    assert reader.tags.count("svg") >= 4
