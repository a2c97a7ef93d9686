"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from rich.markup import escape
from rich.table import Table

from mixfluence.evaluation.results import Evaluation


def score_table(title: str, rows: Mapping[str, Mapping[str, Evaluation]], measure: str = "ndcg@10") -> Table:
    """Return one line per system and one column per dataset, in points (x 100), the best of each in bold.

    Args:
        title: Stands above the table.
        rows: System -> dataset -> scores. Every system must have the same datasets.
        measure: Which of the measures to show.
    """
    datasets = list(next(iter(rows.values())))
    points = {system: [100 * scores[name].mean(measure) for name in datasets] for system, scores in rows.items()}
    columns = list(datasets)
    if len(datasets) > 1:
        columns = ["average", *columns]
        points = {system: [fmean(values), *values] for system, values in points.items()}
    best = [max(values[i] for values in points.values()) for i in range(len(columns))]
    table = Table(title=escape(title), title_justify="left", title_style="bold")
    table.add_column("")
    for column in columns:
        table.add_column(escape(column), justify="right")
    for system, values in points.items():
        cells = [
            f"[bold]{value:.1f}[/bold]" if value == top and len(rows) > 1 else f"{value:.1f}"
            for value, top in zip(values, best, strict=True)
        ]
        table.add_row(escape(system), *cells)
    return table
