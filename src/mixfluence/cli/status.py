"""`mixfluence status`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mixfluence.cli.terminal import output


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder, finished or not.")],
) -> None:
    """Show the progress of a run and, once it has finished, its scores. Reads the folder alone."""
    from mixfluence.report.status import read_status, status_view

    output.print(status_view(read_status(run)), highlight=False)
