"""`mixfluence status`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from mixfluence.cli.terminal import output, print_line

if TYPE_CHECKING:
    from rich.table import Table


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, done or not.")],
) -> None:
    """Show how far a run is and, when it is finished, what it scored, from its folder alone."""
    from mixfluence.report.status import read_status, status_view
    from mixfluence.run_folder import RECORD_FILE, read_record

    found = read_status(run)
    output.print(status_view(found), highlight=False)
    if found.state == "finished":
        record = read_record(run / RECORD_FILE)
        scores = record["scores"]
        print_line(f"\nthe model is that of step {record['selected_step']:,}{', test scores x 100' if scores else ''}")
        if scores:
            output.print(_score_table(scores), highlight=False)


def _score_table(scores: Mapping[str, Mapping[str, float]]) -> Table:
    """Return test sets in lines and what all of them measured in columns, the mean first if there are several."""
    from rich.table import Table
    from rich.text import Text

    tested = list(scores.items())
    measures = [measure for measure in tested[0][1] if all(measure in values for _, values in tested)]
    if len(tested) > 1:
        means = {measure: fmean(values[measure] for _, values in tested) for measure in measures}
        tested = [("average", means), *tested]
    table = Table.grid(padding=(0, 2))
    table.add_column(overflow="fold")
    for _ in measures:
        table.add_column(justify="right", no_wrap=True)
    table.add_row("", *measures, style="dim")
    for name, values in tested:
        # Names are data: as text, brackets in them mean nothing.
        table.add_row(Text(name), *(f"{100 * values[measure]:.1f}" for measure in measures))
    return table
