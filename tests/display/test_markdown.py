"""A page as Markdown, as a reader of Markdown shows it."""

from markdown_it import MarkdownIt

from convoy.benchmark.page import benchmark_page
from convoy.display.markdown import escaped, to_markdown
from convoy.display.page import (
    Chart,
    Code,
    Page,
    Table,
)
from tests.benchmark.cases import whole
from tests.display.blocks import every_block

EVIL = "<b>a</b> *b* _c_ `d` | e [f](g) #h ~i~ $j$ \\k & &amp; !l"
"""What would be markup."""


def _shown(markdown: str) -> str:
    return MarkdownIt("commonmark").enable("table").render(markdown)


def _plain(html: str) -> str:
    for name, sign in (("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&amp;", "&")):
        html = html.replace(name, sign)
    return html


def test_text_of_any_origin_is_shown_as_it_is_in_every_kind_of_block() -> None:
    shown = _shown(to_markdown(Page("x", every_block(EVIL))))
    assert "<b>" not in shown
    assert "<a " not in shown
    assert _plain(shown).count(EVIL) == 17


def test_what_begins_a_line_begins_no_list() -> None:
    for text in ("- a", "+ a", "1. a", "12) a", "= a", "# a", "> a"):
        assert _plain(_shown(escaped(text))) == f"<p>{text}</p>\n"


def test_code_with_fences_stays_one_block() -> None:
    code = "a\n````\nb"
    assert _shown(to_markdown(Page("x", (Code(code),)))) == f"<pre><code>{code}\n</code></pre>\n"


def test_a_line_break_in_a_cell_stays_in_its_row() -> None:
    shown = _shown(to_markdown(Page("x", (Table(("a", "b"), (("one\ntwo", "three"),)),))))
    assert "<td>one two</td>\n<td>three</td>" in shown


def test_a_curve_is_a_line_of_bars_and_a_bar_a_number() -> None:
    text = to_markdown(Page("x", (Chart("Loss", {}, {"training": (3.0, 2.0, 1.0), "one": (745_000.0,), "none": ()}),)))
    assert "| training | 3.00 █▅▁ 1.00 |" in text
    assert "| one | 745 k |" in text
    assert "none" not in text


def test_the_order_of_the_cases_changes_nothing() -> None:
    assert to_markdown(benchmark_page(whole())) == to_markdown(benchmark_page(whole()[::-1]))
