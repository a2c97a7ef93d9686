"""The paper's tables as printed, one YAML file each. Misprints are kept and marked with the likely value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import model_validator

from mixfluence import DataError
from reproduction.schema import Strict

FOLDER = Path(__file__).parent
TOTAL, AVERAGE = "total", "average"

Labels = Mapping[str, str | float]


class PaperRow(Strict):
    """One row.

    Attributes:
        labels: What identifies the run, such as `sampling` and `init`; an infinite `init` is uniform.
        cells: Column -> number.
        average: The printed average over the columns, if any.
        significant: Columns marked as significantly better than the row compared with.
    """

    labels: Labels
    cells: Mapping[str, int | float]
    average: float | None = None
    significant: tuple[str, ...] = ()


class Misprint(Strict):
    """A number that cannot be right.

    Attributes:
        row: The labels of its row, or `total`.
        cell: Its column, or `average`.
        likely: The likely value.
        reason: How that is known.
    """

    row: Labels | str
    cell: str
    likely: float
    reason: str


class PaperTable(Strict):
    """A table of the paper.

    Attributes:
        name: The name of its file.
        title: What it shows, in our words.
        label: Its label in the paper's LaTeX source.
        metric: The unit of its numbers.
        columns: Names of the columns.
        rows: The rows in the paper's order.
        totals: Column -> printed total, if any.
        misprints: Numbers that cannot be right.
        remarks: Notes for readers.
    """

    name: str
    title: str
    label: str
    metric: str
    columns: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    totals: Mapping[str, float] = {}
    misprints: tuple[Misprint, ...] = ()
    remarks: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _name_columns(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Files list numbers in the order of the columns, and labels among the other keys of a row."""
        rows = []
        for row in data["rows"]:
            numbers = {key: row[key] for key in (AVERAGE, "significant") if key in row}
            labels = {key: value for key, value in row.items() if key not in {*numbers, "cells"}}
            cells = dict(zip(data["columns"], row["cells"], strict=True))
            rows.append({"labels": labels, "cells": cells, **numbers})
        totals = dict(zip(data["columns"], data["totals"], strict=True)) if "totals" in data else {}
        return data | {"rows": rows, "totals": totals}

    def row(self, **labels: str | float) -> PaperRow:
        """Return the only row with these labels.

        Raises:
            DataError: If no row or several rows have them.
        """
        found = [row for row in self.rows if row.labels.items() >= labels.items()]
        if len(found) != 1:
            raise DataError(f"{self.name}: {len(found)} rows have the labels {labels}, expected one")
        return found[0]

    def misprint(self, row: PaperRow | None, cell: str) -> Misprint | None:
        """Return the misprint in a cell or the average of a row, or in a total if `row` is None."""
        labels = TOTAL if row is None else row.labels
        return next((found for found in self.misprints if (found.row, found.cell) == (labels, cell)), None)


def table_names() -> list[str]:
    """Return the names of all tables."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def read_table(name: str) -> PaperTable:
    """Read a table.

    Raises:
        DataError: If there is no table of that name.
    """
    if name not in table_names():
        raise DataError(f"the paper has no table {name!r}; choose from {', '.join(table_names())}")
    return PaperTable(name=name, **yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))
