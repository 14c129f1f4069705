"""What tokens took of energy, where power was measured, and what that emits. Pure."""

from collections.abc import Sequence

from convoy.benchmark.analysis.model import CaseFigures, EnergyFigures, GroupFigures, trains_one_model
from convoy.benchmark.results.values import POWER_WATTS
from convoy.catalog.energy import grid_intensity, pue
from convoy.stats.interval import Interval


def energies(groups: Sequence[GroupFigures]) -> tuple[EnergyFigures, ...]:
    """Of every case whose power was measured, and which computes what it should."""
    return tuple(
        _energy(group, case)
        for group in groups
        for case in group.cases
        if trains_one_model(case) and case.values.get(POWER_WATTS, 0.0) > 0
    )


def _energy(group: GroupFigures, case: CaseFigures) -> EnergyFigures:
    hardware, rate, watts = group.hardware, case.tokens_per_second, case.values[POWER_WATTS]
    assert rate is not None
    per_joule = _scaled(rate, 1 / watts)
    watt_hours = _inverse(per_joule, 1e6 / 3600)
    site, grid, why = None, None, ""
    if hardware.instance_type is None:
        why = "the machine was not told to be one of a cloud's region (cluster.instance_type)"
    elif group.region is None:
        why = "the results do not tell the region (cluster.region)"
    else:
        site, grid = pue(group.region), grid_intensity(group.region)
        missing = [name for name, found in (("PUE", site), ("grid intensity", grid)) if found is None]
        why = f"no {' and no '.join(missing)} of {group.region} is known" if missing else ""
    return EnergyFigures(
        case=f"{group.suite}-{group.name}-{case.name}",
        model=group.model,
        watts=watts,
        tokens_per_joule=per_joule,
        watt_hours_per_million_tokens=watt_hours,
        pue=site,
        grid=grid,
        grams_per_million_tokens=_scaled(watt_hours, site.pue * grid.grams_per_kwh / 1e3) if site and grid else None,
        why=why,
    )


def _scaled(figure: Interval, factor: float) -> Interval:
    return Interval(estimate=factor * figure.estimate, low=factor * figure.low, high=factor * figure.high, n=figure.n)


def _inverse(figure: Interval, over: float) -> Interval:
    """`over` divided by it."""
    return Interval(estimate=over / figure.estimate, low=over / figure.high, high=over / figure.low, n=figure.n)
