"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from mixfluence.evaluation.results import Evaluation

WIDEST = 6


def score_table(rows: Mapping[str, Mapping[str, Evaluation]], measure: str = "ndcg@10") -> Table:
    """Return the scores of systems on datasets in points (x 100), the best system of each dataset in bold.

    Systems stand in lines as papers print them, unless there are so many datasets that a terminal would cut
    them off; then datasets stand in lines.

    Args:
        rows: System -> dataset -> scores. Every system must have the same datasets.
        measure: Which of the measures to show; `measure_table` shows all of one system.
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


def measure_table(scores: Mapping[str, Mapping[str, float]]) -> Table:
    """Return the scores of one system in points (x 100), datasets in lines and measures in columns, the mean first.

    Args:
        scores: Dataset -> measure -> score. Measures that some datasets lack are left out.
    """
    lines = list(scores.items())
    measures = [measure for measure in lines[0][1] if all(measure in values for _, values in lines)]
    if len(lines) > 1:
        means = {measure: fmean(values[measure] for _, values in lines) for measure in measures}
        lines = [("average", means), *lines]
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    for _ in measures:
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", *measures, style="dim")
    for name, values in lines:
        table.add_row(Text(name), *(f"{100 * values[measure]:.1f}" for measure in measures))
    return table


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
