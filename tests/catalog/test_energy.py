"""PUE and grid intensity: dated inputs, and none where none is known."""

from datetime import date

import pytest

from convoy.catalog import table
from convoy.catalog.energy import GridIntensity, Pue, grid_intensity, pue


def is_sourced(found: Pue | GridIntensity, publisher: str) -> bool:
    """Whether it tells its year, the day on which it was read, and who published it."""
    return date(found.year, 1, 1) < found.date <= date.today() and publisher in found.source


@pytest.mark.parametrize("region", sorted({row["region"] for row in table("energy")["pue"]}))
def test_every_pue_has_its_year_and_source(region: str) -> None:
    found = pue(region)
    assert found is not None
    assert 1 < found.pue < 2
    assert is_sourced(found, "AWS")


@pytest.mark.parametrize("region", sorted({row["region"] for row in table("energy")["grid"]}))
def test_every_grid_intensity_has_its_year_and_source(region: str) -> None:
    found = grid_intensity(region)
    assert found is not None
    assert 0 < found.grams_per_kwh < 1000
    assert is_sourced(found, "Electricity Maps")


def test_no_other_region_stands_for_one_that_is_not_known() -> None:
    assert pue("us-east-9") is None
    assert grid_intensity("us-east-9") is None
    assert pue("ap-northeast-2") is None  # AWS tells an average of several regions there
    assert grid_intensity("ap-northeast-2") is not None
    assert grid_intensity("ca-west-1") is None


def test_known_figures() -> None:
    oregon = pue("us-west-2"), grid_intensity("us-west-2")
    assert oregon[0] is not None
    assert oregon[1] is not None
    assert (oregon[0].pue, oregon[0].year, oregon[1].grams_per_kwh, oregon[1].year) == (1.12, 2025, 119.76, 2023)
