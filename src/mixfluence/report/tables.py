"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.markup import escape
from rich.table import Table

from mixfluence.evaluation.results import Evaluation

WIDEST = 6


def score_table(rows: Mapping[str, Mapping[str, Evaluation]], measure: str = "ndcg@10") -> Table:
    """Return the scores of systems on datasets in points (x 100), the best system of each dataset in bold.

    Systems stand in lines as papers print them, unless there are so many datasets that a terminal would cut
    them off; then datasets stand in lines.

    Args:
        rows: System -> dataset -> scores. Every system must have the same datasets.
        measure: Which of the measures to show.
    """
    names = list(next(iter(rows.values())))
    points = {system: [100 * scores[name].mean(measure) for name in names] for system, scores in rows.items()}
    if len(names) > 1:
        names = ["average", *names]
        points = {system: [fmean(values), *values] for system, values in points.items()}
    best = [max(column) for column in zip(*points.values(), strict=True)]
    cells = {
        system: [_cell(value, len(rows) > 1 and value == top) for value, top in zip(values, best, strict=True)]
        for system, values in points.items()
    }
    if len(names) <= WIDEST:
        return _table(names, cells)
    by_dataset = {name: [cells[system][i] for system in cells] for i, name in enumerate(names)}
    return _table(list(cells), by_dataset)


def _cell(value: float, best: bool) -> str:
    return f"[bold]{value:.1f}[/bold]" if best else f"{value:.1f}"


def _table(columns: Sequence[str], lines: Mapping[str, Sequence[str]]) -> Table:
    table = Table()
    table.add_column("", no_wrap=True)
    for column in columns:
        table.add_column(escape(column), justify="right")
    for name, cells in lines.items():
        table.add_row(escape(name), *cells)
    return table
