"""Reads a table of the paper as it is printed. What must be a misprint is kept, and marked with what it should be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mixfluence.errors import DataError

FOLDER = Path(__file__).parent
# Keys of a row that are no labels.
NUMBERS = ("cells", "average", "significant")
TOTAL, AVERAGE = "total", "average"

Labels = Mapping[str, str | float]


@dataclass(frozen=True)
class PaperRow:
    """One row: which run it is, and what it is said to have reached.

    Attributes:
        labels: What tells the run from others, such as `sampling` and `init`; an infinite `init` is uniform.
        cells: Column -> number.
        average: The average over the columns as it is printed, if there is one.
        significant: The columns in which it is marked as significantly better than the row it is compared with.
    """

    labels: Labels
    cells: Mapping[str, float]
    average: float | None = None
    significant: tuple[str, ...] = ()


@dataclass(frozen=True)
class Misprint:
    """A number that cannot be right.

    Attributes:
        row: The labels of its row, or `total`.
        cell: Its column, or `average`.
        likely: What it should be.
        reason: How that is known.
    """

    row: Labels | str
    cell: str
    likely: float
    reason: str


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper.

    Attributes:
        name: How it is asked for.
        title: What it is about, in our words.
        label: What the paper's source calls it.
        metric: What its numbers are.
        columns: Names of the columns.
        rows: The rows, in the order of the paper.
        totals: Column -> total as it is printed, if there is one.
        misprints: Numbers that cannot be right.
        remarks: What a reader of the table should know.
    """

    name: str
    title: str
    label: str
    metric: str
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    totals: Mapping[str, float]
    misprints: tuple[Misprint, ...]
    remarks: tuple[str, ...]

    def row(self, **labels: str | float) -> PaperRow:
        """Return the row that has these labels.

        Raises:
            DataError: If none has them, or several.
        """
        found = [row for row in self.rows if row.labels.items() >= labels.items()]
        if len(found) != 1:
            raise DataError(f"{self.name}: {len(found)} rows have the labels {labels}, expected one")
        return found[0]

    def misprint(self, row: PaperRow | None, cell: str) -> Misprint | None:
        """Return what is wrong with a cell or an average of a row, or with a total if no row is given."""
        labels = TOTAL if row is None else row.labels
        return next((found for found in self.misprints if (found.row, found.cell) == (labels, cell)), None)


def table_names() -> list[str]:
    """Return the names of all tables."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_table(name: str) -> PaperTable:
    """Return a table of the paper.

    Raises:
        DataError: If there is no such table.
    """
    path = FOLDER / f"{name}.yaml"
    if name not in table_names():
        raise DataError(f"the paper has no table '{name}', it has {', '.join(table_names())}")
    data: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    columns = tuple(data["columns"])
    return PaperTable(
        name=name,
        title=data["title"],
        label=data["label"],
        metric=data["metric"],
        columns=columns,
        rows=tuple(_row(columns, row) for row in data["rows"]),
        totals=dict(zip(columns, data["totals"], strict=True)) if "totals" in data else {},
        misprints=tuple(Misprint(**misprint) for misprint in data.get("misprints", ())),
        remarks=tuple(data.get("remarks", ())),
    )


def _row(columns: Sequence[str], row: Mapping[str, Any]) -> PaperRow:
    labels = {key: value for key, value in row.items() if key not in NUMBERS}
    cells = dict(zip(columns, row["cells"], strict=True))
    return PaperRow(labels, cells, row.get(AVERAGE), tuple(row.get("significant", ())))
