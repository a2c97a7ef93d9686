"""`mixfluence evaluate`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mixfluence.cli.terminal import errors, output, prepare, print_line
from mixfluence.errors import RecipeError

if TYPE_CHECKING:
    from mixfluence.recipe import Recipe


class Measure(StrEnum):
    """What a table can show."""

    NDCG = "ndcg@10"
    MRR = "mrr@10"
    RECALL = "recall@100"
    MAP = "map@100"


def evaluate(
    systems: Annotated[
        list[str], typer.Argument(metavar="RUN_OR_MODEL", help="Run folders, model folders, or encoder names.")
    ],
    recipe: Annotated[
        str | None, typer.Option(help="Whose test sets and lengths to use; a run's own if not given.")
    ] = None,
    bm25: Annotated[bool, typer.Option("--bm25", help="Add a row for BM25.")] = False,
    measure: Annotated[Measure, typer.Option(help="What to show.")] = Measure.NDCG,
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
    """Return the last part of each path, or the whole paths if that would make two systems look like one."""
    names = [Path(system).name or system for system in systems]
    return names if len(set(names)) == len(names) else systems


def _recipe(systems: list[str], name: str | None, overrides: list[str]) -> Recipe:
    from mixfluence.recipe_yaml import find_recipe, load_recipe

    runs = [Path(system) / "recipe.yaml" for system in systems if (Path(system) / "recipe.yaml").is_file()]
    if name is None and not runs:
        raise RecipeError(f"{systems[0]}: not a run folder, so --recipe must say on what to evaluate it")
    recipe = load_recipe(find_recipe(name) if name else runs[0], overrides)
    if not recipe.test:
        raise RecipeError(f"{name or runs[0]}: the recipe names no test set")
    return recipe
