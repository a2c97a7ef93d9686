"""`mixfluence status`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mixfluence.cli.terminal import output


def status(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run, done or not.")],
) -> None:
    """Show how far a run is and, when it is finished, what it scored, from its folder alone."""
    from mixfluence.report.status import read_status, status_view

    output.print(status_view(read_status(run)), highlight=False)
