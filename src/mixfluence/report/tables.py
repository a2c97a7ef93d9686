"""Tables for the terminal, and as Markdown and LaTeX; names may contain any characters."""

from __future__ import annotations

import html
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from mixfluence.display import printable
from mixfluence.evaluation.results import Evaluation
from mixfluence.files import write_text


@dataclass(frozen=True)
class Cell:
    """A text and how it looks; the mark follows it."""

    text: str
    bold: bool = False
    mark: str = ""


@dataclass(frozen=True)
class Column:
    """A column; numeric ones are aligned to the right."""

    head: str
    cells: tuple[Cell, ...]
    numeric: bool = True


@dataclass(frozen=True)
class Sheet:
    """A table whose first `keys` columns say what a line is about."""

    title: str
    columns: tuple[Column, ...]
    keys: int

    @property
    def lines(self) -> list[tuple[Cell, ...]]:
        """The cells line by line."""
        return list(zip(*(column.cells for column in self.columns), strict=True))


def words(head: str, texts: Sequence[str]) -> Column:
    """Return a column of plain text."""
    return Column(head, tuple(map(Cell, texts)), numeric=False)


def numbers(head: str, texts: Sequence[str]) -> Column:
    """Return a column of formatted numbers."""
    return Column(head, tuple(map(Cell, texts)))


def score_table(systems: Mapping[str, Mapping[str, Evaluation]], measure: str = "ndcg@10") -> Screen:
    """Return scores (system -> test set) in points, the best of each test set in bold; all have the same sets."""
    scores = [_with_average({test: own.mean(measure) for test, own in tests.items()}) for tests in systems.values()]
    columns = [words("", list(systems))]
    for test in scores[0]:
        best = max(own[test] for own in scores) if len(scores) > 1 else None
        columns.append(Column(test, tuple(Cell(f"{100 * own[test]:.1f}", own[test] == best) for own in scores)))
    return Screen([Sheet(f"{measure.upper()} × 100:", tuple(columns), 1)])


def measure_sheet(title: str, scores: Mapping[str, Mapping[str, float]]) -> Sheet:
    """Return scores of one system (test set -> measure) in points; measures that some sets lack are left out."""
    measures = [name for name in next(iter(scores.values())) if all(name in own for own in scores.values())]
    by_measure = {name: _with_average({test: own[name] for test, own in scores.items()}) for name in measures}
    columns = [numbers(name, [f"{100 * value:.1f}" for value in own.values()]) for name, own in by_measure.items()]
    return Sheet(title, (words("", list(by_measure[measures[0]])), *columns), 1)


def add_to_card(card: Path, scores: Mapping[str, Evaluation]) -> None:
    """Add the test scores of a model to its model card, if it has one."""
    if scores and card.exists():
        sheet = measure_sheet("Scores × 100", {test: own.summary() for test, own in scores.items()})
        write_text(card, f"{card.read_text(encoding='utf-8').rstrip()}\n\n## Test scores\n\n{markdown_table(sheet)}")


def _with_average(scores: Mapping[str, float]) -> dict[str, float]:
    return {"average": fmean(scores.values()), **scores} if len(scores) > 1 else dict(scores)


@dataclass(frozen=True)
class Screen:
    """Tables and notes for a terminal of any width.

    A table that is too wide is transposed; if it is still too wide, it is split between columns.
    """

    sheets: Sequence[Sheet]
    notes: Sequence[str] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for sheet in self.sheets:
            if sheet.title:
                yield Text(printable(sheet.title), style="bold")
            for table in _fitting(sheet, console, options):
                yield table
                yield ""
        for note in self.notes:
            yield Text(printable(note), style="dim")


def _fitting(sheet: Sheet, console: Console, options: ConsoleOptions) -> Iterator[Table]:
    endless = options.update(max_width=sys.maxsize)

    def fits(columns: Sequence[Column]) -> bool:
        return Measurement.get(console, endless, _rich_table(columns)).maximum <= options.max_width

    keys, rest = sheet.columns[: sheet.keys], sheet.columns[sheet.keys :]
    if fits(sheet.columns):
        yield _rich_table(sheet.columns)
    elif fits(transposed := _transposed(sheet)):
        yield _rich_table(transposed)
    else:
        block: tuple[Column, ...] = ()
        for column in rest:
            if block and not fits((*keys, *block, column)):
                yield _rich_table((*keys, *block))
                block = ()
            block = (*block, column)
        yield _rich_table((*keys, *block))


def _rich_table(columns: Sequence[Column]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
    for column in columns:
        table.add_column(Text(printable(column.head)), justify="right" if column.numeric else "left", overflow="fold")
    for line in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*(Text(printable(cell.text) + cell.mark, style="bold" if cell.bold else "") for cell in line))
    return table


def _transposed(sheet: Sheet) -> list[Column]:
    first = words("", [column.head for column in sheet.columns[sheet.keys :]])
    heads = [" ".join(cell.text for cell in line[: sheet.keys]) for line in sheet.lines]
    return [first, *(Column(head, line[sheet.keys :]) for head, line in zip(heads, sheet.lines, strict=True))]


def markdown_table(sheet: Sheet) -> str:
    """Return a table as GitHub Markdown below its title."""
    heads, *lines = _escaped(sheet, markdown_text, "**{}**")
    rules = ["---:" if column.numeric else ":---" for column in sheet.columns]
    table = "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, rules, *lines))
    return f"**{markdown_text(sheet.title)}**\n\n{table}"


def latex_table(sheet: Sheet) -> str:
    """Return a table for `booktabs` below its title."""
    import pandas

    heads, *lines = _escaped(sheet, printable, "{}")
    layout = "".join("r" if column.numeric else "l" for column in sheet.columns)
    table = pandas.DataFrame(lines, columns=heads).to_latex(index=False, escape=True, column_format=layout)
    return f"% {printable(sheet.title)}\n{table}"


def markdown_text(text: str) -> str:
    """Return a text with nothing in it that Markdown would interpret."""
    return re.sub(r"([\\`*_\[\]|~#$])", r"\\\1", html.escape(printable(text), quote=False))


def _escaped(sheet: Sheet, escape: Callable[[str], str], bold: str) -> list[list[str]]:
    """Return heads and lines of a table as text of some format."""

    def styled(cell: Cell) -> str:
        text = escape(cell.text)
        return (bold.format(text) if cell.bold else text) + escape(cell.mark)

    return [[escape(column.head) for column in sheet.columns], *([*map(styled, line)] for line in sheet.lines)]
