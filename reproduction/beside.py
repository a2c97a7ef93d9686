"""The paper's numbers as printed, to show beside ours; misprints are marked and explained."""

from __future__ import annotations

from collections.abc import Sequence

from reproduction.paper import AVERAGE, Misprint, PaperRow, PaperTable
from reproduction.schema import Row
from reproduction.tables import Table

MISPRINT, SIGNIFICANT = "†", r"\*"


def paper_table(table: PaperTable) -> Table:
    """Return a table of the paper."""
    names = [AVERAGE] if any(row.average is not None for row in table.rows) else []
    columns = {name: [_cell(table, row, name) for row in table.rows] for name in (*names, *table.columns)}
    labels = {"the paper": [_label(row) for row in table.rows]}
    return Table(f"The paper: {table.title} ({table.metric})", labels | columns)


def paper_notes(table: PaperTable) -> list[str]:
    """Return the misprints of a table and remarks for its readers."""
    wrong = [
        f"{MISPRINT} {_place(misprint)}: likely {misprint.likely:g}. {misprint.reason}" for misprint in table.misprints
    ]
    return [f"{table.title}: {note}" for note in (*wrong, *table.remarks)]


def paper_value(tables: Sequence[PaperTable], row: Row) -> str:
    """Return the paper's average for a row, or its cells if the table prints no average; empty if it has none."""
    if row.paper is None or not tables:
        return ""
    table = next(table for table in tables if row.table in (None, table.name))
    found = table.row(**row.paper)
    names = [AVERAGE] if found.average is not None else list(table.columns)
    spread = table.row(**row.deviation) if row.deviation else None
    texts = [_value(found, name) + (f" ± {_value(spread, name)}" if spread else "") for name in names]
    wrong = any(table.misprint(found, name) for name in (*table.columns, AVERAGE))
    return " / ".join(texts) + (MISPRINT if wrong else "")


def _cell(table: PaperTable, row: PaperRow, name: str) -> str:
    mark = MISPRINT if table.misprint(row, name) else SIGNIFICANT if name in row.significant else ""
    return _value(row, name) + mark


def _value(row: PaperRow, name: str) -> str:
    value = row.average if name == AVERAGE else row.cells[name]
    if value is None:
        return ""
    # As printed: scores have one digit, means of a table two, counts none.
    return f"{value:.1f}" if isinstance(value, float) and round(value, 1) == value else f"{value}"


def _label(row: PaperRow) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in row.labels.values())


def _place(misprint: Misprint) -> str:
    row = misprint.row if isinstance(misprint.row, str) else ", ".join(map(str, misprint.row.values()))
    return f"{row}, {misprint.cell}"
