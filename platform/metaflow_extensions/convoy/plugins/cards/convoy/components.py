"""Pages as components of a Metaflow card. Import it inside a step, after metaflow."""

import contextlib
import signal
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any

from metaflow.cards import Markdown, MetaflowCardComponent, ProgressBar, Table, ValueBox, VegaChart
from metaflow.plugins.cards.card_creator import CardProcessManager

from convoy.display import page as p
from convoy.display.markdown import fenced


@dataclass(frozen=True)
class Section:
    """A heading of level 2 and the parts below it."""

    heading: p.Heading
    parts: tuple["Part", ...]


Part = p.Heading | p.Text | p.Callout | p.Value | p.Progress | p.Table | p.Chart | p.Timeline | p.Code | Section
"""What one component shows: a block, one value of a `Values` block, or a section."""

WRITE_SECONDS = 55.0
"""For one of Metaflow's processes to write a card, which gives up by then."""

_THEMES = {"plain": "default", "good": "success", "warning": "warning", "bad": "danger"}


class PartComponent(MetaflowCardComponent):
    """Shows one part, and another one of the same kind after `update`: its place on the card stays the same."""

    REALTIME_UPDATABLE = True

    def __init__(self, part: Part) -> None:
        self.part = part

    def update(self, part: Part) -> None:
        """Show this from the next refresh on."""
        self.part = part

    def render(self) -> dict[str, Any]:
        """What Metaflow's page draws, as JSON data."""
        return {**_part_json(self.part), "id": self.component_id}


def components_of(page: p.Page) -> list[PartComponent]:
    """Components for all parts of the page, in order."""
    return [PartComponent(part) for part in parts_of(page)]


def show(card: Any, page: p.Page) -> None:
    """Have `card` (`current.card` or `current.card["id"]`) show the page when it is next written: by a refresh, or as
    Metaflow writes it at the end of a task that succeeds."""
    parts = list(parts_of(page))
    components = list(card.components)
    if components and [_part_kind(c.part) for c in components] == [_part_kind(part) for part in parts]:
        for component, part in zip(components, parts, strict=True):
            component.update(part)
    else:
        card.clear()
        card.extend([PartComponent(part) for part in parts])


def draw(card: Any, page: p.Page, force: bool = False) -> None:
    """Show the page on `card` and refresh it now, in a process of Metaflow's, which takes a second of a core.

    Where the page has the same kinds of parts as the one before, only the card's data is written anew. While another
    page is being written this one is left out, but with `force`, which ends that and returns when this page is written
    whole: use it for the last page of a task that is about to fail. The card needs
    `@card(type="convoy_card", refresh_interval=0)`: Metaflow drops refreshes within the interval, forced ones too, so
    the caller decides how often to draw.
    """
    show(card, page)
    for writer in _running_writers():
        if not force:
            return  # Metaflow would drop it: the next refresh shows this page
        writer["proc"].kill()  # what it writes is out of date, and who draws for the last time may have seconds left
        writer["proc"].wait()
    with _ending_signals_blocked():
        card.refresh(force=force)
    for writer in _running_writers() if force else ():
        with contextlib.suppress(subprocess.TimeoutExpired):
            writer["proc"].wait(WRITE_SECONDS)


@contextlib.contextmanager
def _ending_signals_blocked() -> Iterator[None]:
    """What is started within does not hear of a Ctrl-C, or of the end of its terminal, which every process of a run
    gets: it has a card to write. A process inherits the mask of the thread that starts it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _running_writers() -> list[Any]:
    """The processes that write this task's cards now."""
    return [writer for writer in CardProcessManager.async_card_processes.values() if writer["proc"].poll() is None]


def parts_of(page: p.Page) -> Iterator[Part]:
    """What comes before the first section, its headline numbers one by one, and then the sections."""
    for blocks in p.split_sections(page.blocks):
        first = blocks[0]
        if isinstance(first, p.Heading) and first.level > 1:
            yield Section(first, tuple(_split_values(blocks[1:])))
        else:
            yield from _split_values(blocks)


def _split_values(blocks: Iterable[p.Block]) -> Iterator[Part]:
    for block in blocks:
        if isinstance(block, p.Values):
            yield from block.items
        else:
            yield block


def _part_kind(part: Part) -> tuple[type, Any]:
    if isinstance(part, Section):
        return Section, tuple(map(_part_kind, part.parts))
    return type(part), part.level if isinstance(part, p.Heading) else None


# Metaflow's Markdown component drops backslash escapes, so text of any origin goes to components that show it as it is.
# The page knows them, but `metaflow.cards` has no class for them: they are given as the page's own JSON.


def _part_json(part: Part) -> dict[str, Any]:
    match part:
        case Section(heading, parts):
            # Metaflow has no part that folds: the sheet hides what follows an element that is closed.
            fold = {"type": "markdown", "source": f"<details><summary>{escape(heading.text)}</summary></details>"}
            contents = [*([fold] if heading.folded else []), *map(_part_json, parts)]
            return {"type": "section", "title": heading.text, "contents": contents}
        case p.Heading(text):
            return {"type": "heading", "title": text}
        case p.Text(text, quiet):
            return {"type": "subtitle" if quiet else "text", "text": text}
        case p.Callout(title, text, tone):
            theme = f"callout {_THEMES[tone]}"
            return {"type": "valueBox", "title": " ", "value": title, "subtitle": text, "theme": theme}
        case p.Value(title, value, subtitle, tone):
            component = ValueBox(title, value, subtitle or None, _THEMES[tone])
        case p.Progress(label, done, total, detail):
            component = ProgressBar(max=total, label=label, value=done, metadata=detail or " ")
        case p.Table(headers, rows):
            component = Table([list(row) for row in rows], headers=list(headers))
        case p.Chart():
            component = VegaChart(part.spec)
        case p.Timeline(entries):
            component = Table([[e.when, p.MARKS[e.tone], e.text] for e in entries], headers=["", "", ""])
        case p.Code(text):
            component = Markdown(fenced(text))
    data: dict[str, Any] = component.render()
    return data
