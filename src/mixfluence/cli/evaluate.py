"""`mixfluence evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mixfluence.cli.terminal import Measure, MeasureOption, errors, output, prepare, print_line, read_recipe
from mixfluence.errors import RecipeError

if TYPE_CHECKING:
    from mixfluence.recipe import Recipe


def evaluate(
    systems: Annotated[
        list[str], typer.Argument(metavar="RUN_OR_MODEL", help="Run folders, model folders, or encoder names.")
    ],
    recipe: Annotated[
        str | None, typer.Option(help="Recipe with the test sets and lengths; default: that of the first run.")
    ] = None,
    bm25: Annotated[bool, typer.Option("--bm25", help="Add a row for BM25.")] = False,
    measure: MeasureOption = Measure.NDCG,
    to: Annotated[Path | None, typer.Option(help="Write per-query scores into this folder.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe, as for train.")
    ] = None,
) -> None:
    """Score runs or models on test sets, per dataset and per query."""
    parsed = _recipe(systems, recipe, overrides or [])
    prepare()
    from mixfluence.build import build_model
    from mixfluence.data.formats import read_task
    from mixfluence.experiment import evaluate_bm25, evaluate_tasks
    from mixfluence.report.tables import score_table

    tasks = {name: read_task(name, source) for name, source in parsed.test.items()}
    rows = {}
    if bm25:
        rows["BM25"] = evaluate_bm25(tasks, to / "BM25" if to else None)
    for system, label in zip(systems, _labels(systems), strict=True):
        run_model = Path(system) / "model"
        path = str(run_model) if run_model.is_dir() else system
        model = build_model(parsed.model.model_copy(update={"name": path}))
        folder = to / label.replace("/", "-") if to else None
        rows[label] = evaluate_tasks(model, tasks, parsed, folder, show_progress=errors.is_terminal)
    print_line(f"{measure.value.upper()}:")
    output.print(score_table(rows, measure.value))


def _labels(systems: list[str]) -> list[str]:
    """Return the last part of each path, or the whole paths where that would be ambiguous."""
    names = [Path(system).name or system for system in systems]
    return names if len(set(names)) == len(names) else systems


def _recipe(systems: list[str], name: str | None, overrides: list[str]) -> Recipe:
    runs = [str(path) for path in (Path(system) / "recipe.yaml" for system in systems) if path.is_file()]
    if name is None and not runs:
        raise RecipeError(f"{systems[0]}: not a run folder; give the test sets with --recipe")
    recipe = read_recipe(name or runs[0], overrides)
    if not recipe.test:
        raise RecipeError(f"{name or runs[0]}: the recipe has no test sets")
    return recipe
