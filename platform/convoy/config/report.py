"""The live card."""

from pydantic import Field

from convoy.config.base import Frozen


class ReportConfig(Frozen):
    """How often the card is drawn again."""

    card_refresh_seconds: float = Field(15, ge=1)
    """Shortest time between two live cards; each costs about a second of one CPU core."""
