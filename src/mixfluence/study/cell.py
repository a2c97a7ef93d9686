"""One cell: skipped, resumed, trained or, for a model that is not trained, just tested."""

from __future__ import annotations

import shutil
from enum import StrEnum

from mixfluence.errors import RecipeError
from mixfluence.files import write_text
from mixfluence.recipe_yaml import dump_recipe, load_recipe
from mixfluence.runs import (
    CHECKPOINTS_FOLDER,
    EVAL_FOLDER,
    MODEL_FOLDER,
    RECIPE_FILE,
    RECORD_FILE,
    STAGES_FOLDER,
    write_record,
)
from mixfluence.study.grid import BM25, Cell
from mixfluence.study.launch import launch


class State(StrEnum):
    """How far a cell is."""

    NEW = "new"
    STARTED = "started"
    FINISHED = "finished"
    FOREIGN = "a run of another recipe is in its folder"


def state_of(cell: Cell) -> State:
    """Return how far a cell is."""
    path = cell.folder / RECIPE_FILE
    if not path.exists():
        return State.NEW
    if load_recipe(path, files_may_be_missing=True) != cell.recipe:
        return State.FOREIGN
    return State.FINISHED if (cell.folder / RECORD_FILE).exists() else State.STARTED


def run_cell(cell: Cell, *, keep_models: bool, gpus: int = 1) -> None:
    """Do what is left of a cell.

    Args:
        cell: What to do.
        keep_models: Leave models and checkpoints in the run folder. Tables do not need them, and a study has hundreds.
        gpus: GPUs to train on. One is used by this process, several by a process each, see `launch`; a model that is
            only tested needs one.

    Raises:
        RecipeError: If its folder holds a run of another recipe.
    """
    state = state_of(cell)
    if state is State.FOREIGN:
        raise RecipeError(f"{cell.folder}: holds a run of another recipe; choose another output or delete the folder")
    if state is State.FINISHED:
        return
    if cell.row.reference:
        _test(cell)
        return
    _train(cell, gpus, resume=state is State.STARTED)
    if not keep_models:
        for stage in (cell.folder, *(cell.folder / STAGES_FOLDER).glob("*")):
            for folder in (CHECKPOINTS_FOLDER, MODEL_FOLDER):
                shutil.rmtree(stage / folder, ignore_errors=True)


def _train(cell: Cell, gpus: int, *, resume: bool) -> None:
    if gpus > 1:
        launch(cell.recipe, gpus, resume=resume)
        return
    from mixfluence.experiment import run

    run(cell.recipe, resume=resume)


def _test(cell: Cell) -> None:
    """Write a run folder of a model that was not trained: recipe, scores and record."""
    from mixfluence.assembly import build_model, read_task
    from mixfluence.experiment import evaluate_bm25, evaluate_tasks

    recipe, folder = cell.recipe, cell.folder
    tasks = {name: read_task(name, source) for name, source in recipe.test.items()}
    evaluations = folder / EVAL_FOLDER
    if cell.row.reference == BM25:
        scores = evaluate_bm25(tasks, evaluations)
    else:
        scores = evaluate_tasks(build_model(recipe.model), tasks, recipe, evaluations)
    write_text(folder / RECIPE_FILE, dump_recipe(recipe))
    summary = {name: evaluation.summary() for name, evaluation in scores.items()}
    record = {"name": recipe.name, "reference": cell.row.reference, "seed": cell.seed, "scores": summary}
    tests = {name: {"fingerprint": task.fingerprint} for name, task in tasks.items()}
    write_record(folder / RECORD_FILE, record | {"tests": tests}, kind="test")
