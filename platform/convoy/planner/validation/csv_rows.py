"""Reads a CSV file that people wrote, and names file, line and column of what it refuses."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convoy.config.errors import ConfigError

_LARGEST_COUNT = 10**9

_BOOLEANS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False, "": False}


def read_rows(path: Path) -> "list[Row]":
    """All rows that are not empty. Column names may differ in case and surrounding blanks. Other columns, their order,
    line ends and a byte order mark are ignored. Raises ConfigError."""
    rows = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            names = [name.strip().lower() for name in next(reader, [])]
            for cells in reader:
                if any(cell.strip() for cell in cells):
                    rows.append(_row(names, cells, f"{path}:{reader.line_num}"))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not rows:
        raise ConfigError(f"{path}: no rows")
    return rows


def _row(names: list[str], cells: list[str], where: str) -> "Row":
    if len(cells) > len(names):
        raise ConfigError(f"{where}: {len(cells)} cells, but the file has {len(names)} columns")
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{where}: column {twice}: there are two of it")
    filled = [*cells, *[""] * (len(names) - len(cells))]
    return Row(dict(zip(names, map(str.strip, filled), strict=True)), where)


@dataclass(frozen=True)
class Row:
    """Cells of one line. Each method raises ConfigError with file, line and column for what it cannot read."""

    cells: dict[str, str]
    where: str

    def has(self, column: str) -> bool:
        return bool(self.text(column))

    def text(self, column: str) -> str:
        """Empty where there is no such column."""
        return self.cells.get(column, "")

    def require(self, column: str) -> str:
        """Text of a column that the file must have."""
        if column not in self.cells:
            raise ConfigError(f"{self.where}: no column {column}")
        return self.text(column)

    def whole(self, column: str, *, usual: int | None = None) -> int:
        """A positive whole number. usual: what an empty cell means; None: it must not be empty."""
        if usual is not None and not self.has(column):
            return usual
        value = self.number(column)
        if value != int(value):
            raise self.wrong(column, "must be a whole number")
        if value > _LARGEST_COUNT:
            raise self.wrong(column, f"must be at most {_LARGEST_COUNT:,}")
        return int(value)

    def number(self, column: str) -> float:
        """A positive number."""
        text = self.require(column)
        try:
            value = float(text)
        except ValueError:
            raise self.wrong(column, "must be a number") from None
        if not 0 < value < float("inf"):
            raise self.wrong(column, "must be positive")
        return value

    def optional(self, column: str) -> float | None:
        """A positive number; None: the cell is empty."""
        return self.number(column) if self.has(column) else None

    def boolean(self, column: str) -> bool:
        return bool(self.one_of(column, _BOOLEANS))

    def one_of(self, column: str, values: Mapping[str, Any]) -> Any:
        """The value of a word, whose case does not matter and whose blanks and hyphens count as underscores."""
        value = self.text(column).lower().replace("-", "_").replace(" ", "_")
        if value not in values:
            raise self.wrong(column, f"must be one of {', '.join(filter(None, values))}")
        return values[value]

    def wrong(self, column: str, what: str) -> ConfigError:
        """The error to raise."""
        return ConfigError(f"{self.where}: {column} = {self.text(column)}: {what}")
