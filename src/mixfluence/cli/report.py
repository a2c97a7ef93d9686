"""`mixfluence report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mixfluence.cli.terminal import print_line, writing_to


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders, finished or not.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Also write the charts into this folder, as SVG and PDF.")
    ] = None,
) -> None:
    """Show runs on one page that opens in any browser without a network."""
    from mixfluence.files import write_text
    from mixfluence.report.figures import all_charts, write_charts
    from mixfluence.report.page import render_page
    from mixfluence.runs import read_run

    found = [read_run(run) for run in runs]
    with writing_to(output):
        write_text(output, render_page(found))
    print_line(f"wrote {output}")
    if figures:
        with writing_to(figures):
            print_line(f"wrote {len(write_charts(all_charts(found), figures))} files to {figures}")
