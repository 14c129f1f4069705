"""The card type `convoy_card`: Metaflow's blank card with a style of its own, light and dark."""

from pathlib import Path

from metaflow.cards import BlankCard

STYLE = Path(__file__).with_name("style.css")


class ConvoyCard(BlankCard):
    """A live card of components; `@card(type="convoy_card")`."""

    type = "convoy_card"

    def render(self, task, components=[], runtime=False):  # type: ignore[no-untyped-def]  # noqa: B006
        html = super().render(task, components=components, runtime=runtime)
        return html.replace("</head>", f"<style>{STYLE.read_text()}</style></head>", 1)


CARDS = [ConvoyCard]
