"""`mixfluence report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mixfluence.cli.terminal import print_line, writing_to


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run folders; unfinished ones are shown too.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(help="Write the figures of a paper into this folder too, as SVG and PDF.")
    ] = None,
) -> None:
    """Show runs on one page that opens in any browser, without a network."""
    from mixfluence.files import write_text
    from mixfluence.report.folders import read_run
    from mixfluence.report.page import render_page
    from mixfluence.report.series import collect

    collected = collect([read_run(run) for run in runs])
    with writing_to(output):
        write_text(output, render_page(collected))
    print_line(f"wrote {output}")
    if figures:
        from mixfluence.report.figures import write_figures

        with writing_to(figures):
            print_line(f"wrote {len(write_figures(collected, figures))} files to {figures}")
