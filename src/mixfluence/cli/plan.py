"""`mixfluence plan`."""

from __future__ import annotations

import json
import reprlib
from typing import Annotated

import typer

from mixfluence.cli.terminal import output, prepare, print_line
from mixfluence.errors import RecipeError

# More rows than all texts of the world, and not so many that numbers lose their precision.
MOST_DIGITS = 15
MOST_PROCESSES = 1_000_000


def plan(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of one that ships with mixfluence.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Changes, such as training.steps=100.")
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=ROWS,...", help="Rows of datasets that are not here, dev.NAME=ROWS for dev sets; not read."
        ),
    ] = None,
    processes: Annotated[
        int,
        typer.Option(
            min=1, max=MOST_PROCESSES, metavar="N", help="Processes that will train together, one on each GPU."
        ),
    ] = 1,
    calibrate: Annotated[
        int | None, typer.Option(min=5, metavar="STEPS", help="Train for a few steps to tell how long it will take.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Tell what a run will cost before any step of it: epochs, overhead, memory, and what looks wrong."""
    from mixfluence.recipe_yaml import find_recipe, load_recipe

    parsed = load_recipe(find_recipe(recipe), overrides or [], files_may_be_missing=calibrate is None)
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
        print_line("\nSay what you know with --sizes NAME=ROWS,dev.NAME=ROWS.")


def _size(text: str) -> tuple[str, int]:
    name, _, rows = (part.strip() for part in text.rpartition("="))
    if not name or not rows.isdecimal() or len(rows) > MOST_DIGITS:
        raise RecipeError(f"--sizes {reprlib.repr(text)}: expected NAME=ROWS, such as fever=109810")
    return name, int(rows)
