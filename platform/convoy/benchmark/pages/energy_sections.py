"""Part of a benchmark's page on energy and carbon; nothing where no power was measured."""

from collections.abc import Sequence

from convoy.benchmark.analysis.model import BenchReport, EnergyFigures
from convoy.catalog.energy import GridIntensity, Pue
from convoy.display import formatting
from convoy.display.page import Block, Heading, Table, Text

_HOW = (
    "Of the GPUs alone, as their boards measure it: what hosts, network and storage draw is not in it, nor what making "
    "the machines emitted. The interval is that of the rate. Carbon is the energy times the PUE times what the grid of "
    "the region emits, whatever certificates were bought for it."
)


def energy(report: BenchReport) -> tuple[Block, ...]:
    """Tokens for energy, carbon where the region's figures are known, and those with their year and source."""
    if not report.energy:
        return ()
    reasons = dict.fromkeys(f"No carbon of {each.model}: {each.why}." for each in report.energy if each.why)
    return (
        Heading("Energy"),
        Text(_HOW, quiet=True),
        *(Text(reason) for reason in reasons),
        _table(report.energy),
        *_inputs(report.energy),
    )


def _table(all_figures: Sequence[EnergyFigures]) -> Table:
    columns = [
        ("Case", [each.case for each in all_figures]),
        ("GPU power", [f"{formatting.significant(each.watts)} W" for each in all_figures]),
        ("Tokens per joule", [formatting.estimate(each.tokens_per_joule) for each in all_figures]),
        ("Tokens per second and kW", [formatting.rate(1e3 * each.tokens_per_joule.estimate) for each in all_figures]),
        ("Wh per million tokens", [formatting.estimate(each.watt_hours_per_million_tokens) for each in all_figures]),
        ("gCO2e per million tokens", [_grams(each) for each in all_figures]),
    ]
    told = [(header, cells) for header, cells in columns if any(cells)]
    return Table(tuple(header for header, _ in told), tuple(zip(*(cells for _, cells in told), strict=True)))


def _grams(figures: EnergyFigures) -> str:
    return "" if figures.grams_per_million_tokens is None else formatting.estimate(figures.grams_per_million_tokens)


def _inputs(all_figures: Sequence[EnergyFigures]) -> list[Table]:
    """Each once."""
    found = dict.fromkeys(_input(each) for figures in all_figures for each in (figures.pue, figures.grid) if each)
    return [Table(("Input", "Region", "Value", "Average of", "Read on", "Source"), tuple(found))] if found else []


def _input(known: Pue | GridIntensity) -> tuple[str, ...]:
    if isinstance(known, Pue):
        what, value = "PUE", formatting.significant(known.pue)
    else:
        what, value = "Grid intensity", f"{formatting.significant(known.grams_per_kwh)} gCO2e/kWh"
    return what, known.region, value, str(known.year), str(known.date), known.source
