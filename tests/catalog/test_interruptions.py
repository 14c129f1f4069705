"""How often spot machines are taken away."""

import math

import pytest

from convoy.catalog.instances import MONTH_SECONDS, instance, interruptions, mtbf_seconds
from convoy.catalog.tables import table


def test_a_band_has_its_day_and_source() -> None:
    found = interruptions("p4d.24xlarge")
    assert found is not None
    assert (found.low, found.high, str(found.date)) == (0.05, 0.10, "2026-02-24")
    assert "Spot Instance Advisor" in found.source


def test_every_band_is_of_a_machine_of_the_catalog() -> None:
    for row in table("interruptions")["interruptions"]:
        assert instance(row["instance"]).name == row["instance"]
        found = interruptions(row["instance"])
        assert found is not None
        assert found.low < found.high


def test_nothing_is_known_of_other_machines() -> None:
    assert interruptions("c7i.large") is None


def test_what_is_lost_in_a_month_gives_the_rate() -> None:
    alone = mtbf_seconds(0.10, 1)
    assert 1 - math.exp(-MONTH_SECONDS / alone) == pytest.approx(0.10)
    assert mtbf_seconds(0.10, 8) == pytest.approx(alone / 8)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_that_tells_no_rate_is_refused(share: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        mtbf_seconds(share, 1)
