"""`mixfluence merge`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from mixfluence.cli.terminal import errors, output, print_line, show_log
from mixfluence.errors import RecipeError

if TYPE_CHECKING:
    from mixfluence.recipe import Recipe

ALL = "all"


def merge(
    runs: Annotated[list[Path], Argument(metavar="RUN", help="Folders of finished runs with the same start.")],
    folder: Annotated[Path, Option("--output", "-o", metavar="DIR", help="Folder of the merged model.")],
    dev: Annotated[
        str | None, Option(metavar="NAMES", help="Dev sets of the first run to search weights on, or `all`.")
    ] = None,
    base: Annotated[
        float | None, Option("--with-base", min=0, max=1, metavar="SHARE", help="Share of the start in the merge.")
    ] = None,
    evaluations: Annotated[int, Option(min=1, help="Most merges to score.")] = 100,
) -> None:
    """Merge the models of finished runs: evenly, or by the weights with the best NDCG@10 on dev sets; then test."""
    from mixfluence.build import build_model
    from mixfluence.data.formats import read_task
    from mixfluence.files import write_text
    from mixfluence.merging import merge_runs
    from mixfluence.recipe_yaml import dump_recipe
    from mixfluence.report.tables import score_table
    from mixfluence.runs import EVAL_FOLDER, MODEL_FOLDER, RECIPE_FILE, RECORD_FILE, read_run, write_record
    from mixfluence.strategies import Merge
    from mixfluence.testing import evaluate_tasks

    show_log()
    if (folder / RECIPE_FILE).exists():
        raise RecipeError(f"{folder}: already holds a run; choose another output")
    found = [read_run(run) for run in runs]
    recipe = _recipe(found[0].recipe, folder, dev)
    merged = merge_runs(found, Merge(soup=dev is None, start_share=base, evaluations=evaluations), recipe, folder)
    tasks = {name: read_task(name, source) for name, source in recipe.test.items()}
    saved = {"name": str(folder / MODEL_FOLDER), "revision": None, "lora": None}
    model = build_model(recipe.model.model_copy(update=saved))
    scores = evaluate_tasks(model, tasks, recipe, folder / EVAL_FOLDER, show_progress=errors.is_terminal)
    write_text(folder / RECIPE_FILE, dump_recipe(recipe))
    record = {
        "name": recipe.name,
        "reference": f"merge of {', '.join(name for name, weight in merged.weights.items() if weight)}",
        "seed": recipe.seed,
        "merged": merged.weights,
        "scores": {name: evaluation.summary() for name, evaluation in scores.items()},
        "tests": {name: {"fingerprint": task.fingerprint} for name, task in tasks.items()},
    }
    write_record(folder / RECORD_FILE, record, kind="test")
    for name, weight in merged.weights.items():
        print_line(f"{weight:.3f}  {name}")
    if scores:
        print_line("NDCG@10:")
        output.print(score_table({recipe.name: scores}))
    print_line(f"merged model: {folder / MODEL_FOLDER}")


def _recipe(first: Recipe, folder: Path, dev: str | None) -> Recipe:
    """Return the recipe of a merge: that of the first run, with the dev sets that were named."""
    from mixfluence.schema import unknown_key
    from mixfluence.strategies import Static

    names = list(first.dev) if dev in {None, ALL} else [name.strip() for name in (dev or "").split(",")]
    if unknown := [name for name in names if name not in first.dev]:
        raise RecipeError(f"--dev: {unknown_key(unknown[0], first.dev)}")
    if dev and not names:
        raise RecipeError(f"--dev: the recipe of {first.output} has no dev sets")
    changes = {"name": folder.name, "output": folder, "strategy": Static()}
    return first.model_copy(update=changes | {"dev": {name: first.dev[name] for name in names}})
