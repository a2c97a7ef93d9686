"""`mixfluence weights`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mixfluence.cli.terminal import write_result


class Which(StrEnum):
    """Which weights of a run."""

    FINAL = "final"
    AVERAGE = "average"


def weights(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    which: Annotated[
        Which, typer.Option(help="The final weights, or their mean over training batches.")
    ] = Which.FINAL,
    file: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to this file.")] = None,
) -> None:
    """Print the mixture a run learned, as JSON for `strategy.init.file` or another toolkit."""
    import json

    from mixfluence.data.weights import replayed_weights
    from mixfluence.errors import DataError
    from mixfluence.runs import WEIGHTS_FILE, read_run_recipe

    datasets = read_run_recipe(run).train
    if which is Which.FINAL and not (run / WEIGHTS_FILE).exists():
        raise DataError(f"{run}: the run has not finished and has no {WEIGHTS_FILE}; use --which average")
    found = replayed_weights(run, which.value)
    if clusters := [name for name in found if name not in datasets]:
        raise DataError(f"{run}: its trace has weights of clusters such as {clusters[0]}; use --which final")
    text = json.dumps(found, indent=1) + "\n"
    if file:
        write_result(file, text)
    else:
        typer.echo(text, nl=False)
