"""`mixfluence plan`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from mixfluence.cli.terminal import Overrides, RecipeName, output, prepare, print_line, read_recipe
from mixfluence.errors import RecipeError


def plan(
    recipe: RecipeName,
    overrides: Overrides = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=ROWS,...", help="Rows of datasets that are not on this machine; dev.NAME=ROWS for dev sets."
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes that train together, one on each GPU.")
    ] = 1,
    calibrate: Annotated[
        int | None, typer.Option(min=5, metavar="STEPS", help="Train a few steps to estimate the duration.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Estimate the cost of a run before it starts: epochs, overhead, memory, and likely mistakes."""
    parsed = read_recipe(recipe, overrides, files_may_be_missing=calibrate is None)
    given = dict(map(_size, (part for text in sizes or [] for part in text.split(","))))
    prepare(verbose=False)
    from mixfluence.cli.plan_view import plan_view
    from mixfluence.planning import calibrated, plan_run

    planned = plan_run(parsed, given, processes=processes)
    if calibrate:
        planned = calibrated(planned, parsed, calibrate)
    if as_json:
        print_line(json.dumps(planned.as_json(), indent=1))
        return
    output.print(plan_view(planned), highlight=False)
    if None in [*(dataset.rows for dataset in planned.datasets), *planned.guides.values()]:
        print_line("\nGive the missing sizes with --sizes NAME=ROWS,dev.NAME=ROWS.")


def _size(text: str) -> tuple[str, int]:
    name, _, rows = (part.strip() for part in text.rpartition("="))
    if not name or not rows.isdecimal():
        raise RecipeError(f"--sizes {text!r}: expected NAME=ROWS, such as fever=109810")
    return name, int(rows)
