"""Tables on a terminal, which show every number however narrow it is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from mixfluence.report.comparison import Comparison
from mixfluence.report.formats import printable
from mixfluence.report.sheets import Cell, Column, Sheet, make_notes, make_sheets


class Screen:
    """What rich prints of tables and notes.

    A table that is too wide is turned; one that is too wide then, too, is cut between columns into several.

    Args:
        sheets: The tables.
        notes: Sentences below them.
    """

    def __init__(self, sheets: Sequence[Sheet], notes: Sequence[str]) -> None:
        self._sheets = sheets
        self._notes = notes

    @classmethod
    def of(cls, comparison: Comparison) -> Screen:
        """Return what a terminal shows of a comparison."""
        return cls(make_sheets(comparison, for_print=False), make_notes(comparison))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for sheet in self._sheets:
            yield Text(printable(sheet.title), style="bold")
            for table in _fitting(sheet, console, options):
                yield table
                yield ""
        for note in self._notes:
            yield Text(printable(note), style="dim")


def _fitting(sheet: Sheet, console: Console, options: ConsoleOptions) -> Iterator[Table]:
    endless = options.update(max_width=sys.maxsize)

    def fits(columns: Sequence[Column]) -> bool:
        return Measurement.get(console, endless, _table(columns)).maximum <= options.max_width

    if fits(sheet.columns):
        yield _table(sheet.columns)
    elif fits(turned := _turned(sheet)):
        yield _table(turned)
    else:
        keys, rest = sheet.columns[: sheet.keys], sheet.columns[sheet.keys :]
        block: tuple[Column, ...] = ()
        for column in rest:
            if block and not fits((*keys, *block, column)):
                yield _table((*keys, *block))
                block = ()
            block = (*block, column)
        yield _table((*keys, *block))


def _table(columns: Sequence[Column]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for column in columns:
        head = Text(printable(column.head))
        # A word that is wider than the screen goes on in the next line instead of being cut off.
        table.add_column(head, justify="right" if column.numeric else "left", overflow="fold")
    for line in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*map(_text, line))
    return table


def _text(cell: Cell) -> Text:
    return Text(printable(cell.text) + cell.mark, style="bold" if cell.bold else "")


def _turned(sheet: Sheet) -> list[Column]:
    """Return a column for each line, under what its first cells say."""
    keys, rest = sheet.columns[: sheet.keys], sheet.columns[sheet.keys :]
    heads = [" ".join(cell.text for cell in cells) for cells in zip(*(key.cells for key in keys), strict=True)]
    lines = zip(*(column.cells for column in rest), strict=True)
    first = Column("", tuple(Cell(column.head) for column in rest), numeric=False)
    return [first, *(Column(head, line) for head, line in zip(heads, lines, strict=True))]
