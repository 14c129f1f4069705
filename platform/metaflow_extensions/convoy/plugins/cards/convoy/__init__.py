"""The card type `convoy_card`: Metaflow's blank card with a style of its own, light and dark."""

import re
from pathlib import Path

from metaflow.cards import BlankCard

STYLE = Path(__file__).with_name("style.css")

WEB_FONT = re.compile(r'@import\s*"https://fonts\.googleapis\.com[^"]*";?')
"""Metaflow's own sheet requests a font from Google, which then knows who reads the card."""


class ConvoyCard(BlankCard):
    """A live card of components; `@card(type="convoy_card")`."""

    type = "convoy_card"

    def render(self, task, components=[], runtime=False):  # type: ignore[no-untyped-def]  # noqa: B006
        html = super().render(task, components=components, runtime=runtime)
        html = WEB_FONT.sub("", html)
        return html.replace("</head>", f"<style>{STYLE.read_text()}</style></head>", 1)


CARDS = [ConvoyCard]
