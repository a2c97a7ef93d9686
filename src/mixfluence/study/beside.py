"""The paper's own numbers beside ours, as they are printed; what must be a misprint has a mark and a note."""

from __future__ import annotations

from collections.abc import Sequence

from mixfluence.paper import Misprint, PaperRow, PaperTable
from mixfluence.report.tables import Cell, Column, Sheet
from mixfluence.study.schema import Row

MISPRINT = "†"
AVERAGE = "average"


def paper_sheet(table: PaperTable) -> Sheet:
    """Return a table of the paper."""
    columns = [Column("the paper", tuple(Cell(_label(row)) for row in table.rows), numeric=False)]
    if any(row.average is not None for row in table.rows):
        columns.append(Column(AVERAGE, tuple(_cell(table, row, AVERAGE) for row in table.rows)))
    columns += [Column(name, tuple(_cell(table, row, name) for row in table.rows)) for name in table.columns]
    return Sheet(f"The paper: {table.title} ({table.metric})", tuple(columns), 1)


def paper_notes(table: PaperTable) -> list[str]:
    """Return what is wrong with a table, and what a reader of it should know."""
    wrong = [
        f"{MISPRINT} {_place(misprint)}: likely {misprint.likely:g}. {misprint.reason}" for misprint in table.misprints
    ]
    return [f"{table.title}: {note}" for note in (*wrong, *table.remarks)]


def paper_cell(tables: Sequence[PaperTable], row: Row) -> Cell:
    """Return what the paper has for a row: the average as printed, or the cells of a table that has none."""
    if row.paper is None or not tables:
        return Cell("")
    table = next(table for table in tables if row.table in (None, table.name))
    found = table.row(**row.paper)
    names = [AVERAGE] if found.average is not None else list(table.columns)
    spread = table.row(**row.deviation) if row.deviation else None
    texts = [_value(found, name) + (f" ± {_value(spread, name)}" if spread else "") for name in names]
    wrong = any(table.misprint(found, name) for name in (*table.columns, AVERAGE))
    return Cell(" / ".join(texts), mark=MISPRINT if wrong else "")


def _cell(table: PaperTable, row: PaperRow, name: str) -> Cell:
    mark = MISPRINT if table.misprint(row, name) else "*" if name in row.significant else ""
    return Cell(_value(row, name), mark=mark)


def _value(row: PaperRow, name: str) -> str:
    value = row.average if name == AVERAGE else row.cells[name]
    if value is None:
        return ""
    # As printed: most have one digit, means of a table have two, counts have none.
    return f"{value:.1f}" if isinstance(value, float) and round(value, 1) == value else f"{value}"


def _label(row: PaperRow) -> str:
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in row.labels.values())


def _place(misprint: Misprint) -> str:
    row = misprint.row if isinstance(misprint.row, str) else ", ".join(map(str, misprint.row.values()))
    return f"{row}, {misprint.cell}"
