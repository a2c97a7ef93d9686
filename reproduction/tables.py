"""A table for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table as RichTable
from rich.text import Text

from mixfluence.runs import Score


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: The line above it.
        columns: Heading -> cells, in Markdown.
        keys: The first columns contain text, the others numbers.
    """

    title: str
    columns: Mapping[str, Sequence[str]]
    keys: int = 1

    def to_markdown(self) -> str:
        """Return the table in GitHub's Markdown."""
        rules = [":---" if number < self.keys else "---:" for number in range(len(self.columns))]
        lines = [list(self.columns), rules, *zip(*self.columns.values(), strict=True)]
        return f"**{self.title}**\n\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)

    def to_rich(self) -> RichTable:
        """Return the table for a terminal."""
        table = RichTable(box=SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, show_edge=False)
        for number, head in enumerate(self.columns):
            table.add_column(Text(head), justify="left" if number < self.keys else "right")
        for cells in zip(*self.columns.values(), strict=True):
            table.add_row(*map(_plain, cells))
        return table


def bold(text: str) -> str:
    """Return a cell in bold."""
    return f"**{text}**"


def points(score: Score) -> str:
    """Return the mean, with the standard deviation if there are several seeds."""
    return f"{score.mean:.1f}" if score.spread is None else f"{score.mean:.1f} ± {score.spread:.1f}"


def _plain(cell: str) -> Text:
    return Text(cell.replace("**", "").replace("\\", ""), style="bold" if cell.startswith("**") else "")
