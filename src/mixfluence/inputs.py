"""Inputs of a run: its recipe and hashes of its data and encoder, written at the start and compared on resume."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mixfluence import runs
from mixfluence.errors import DataError, RecipeError
from mixfluence.files import write_text
from mixfluence.recipe import Recipe, differing, flat

if TYPE_CHECKING:
    from mixfluence.data.reading import Data

logger = logging.getLogger(__name__)

INPUTS_FILE = "inputs.json"
# Recipe keys that may differ when a run is resumed: `steps` may grow, `batch_size` follow the number of processes.
FREE_KEYS = {"output", "training.log_every", "training.steps", "training.batch_size"}

Inputs = dict[str, dict[str, Any]]


def in_place(recipe: Recipe, file: Path) -> Recipe:
    """Return the recipe of a run folder with that folder as output, wherever the folder was moved to."""
    folder = file.resolve().parent
    if file.name != runs.RECIPE_FILE or not (folder / INPUTS_FILE).exists() or recipe.output.resolve() == folder:
        return recipe
    return recipe.model_copy(update={"output": folder})


def read_inputs(folder: Path) -> Inputs:
    """Read what a run was started with."""
    try:
        inputs: Inputs = json.loads((folder / INPUTS_FILE).read_text(encoding="utf-8"))
        inputs = {kind: dict(values) for kind, values in inputs.items()}
        if "training.steps" not in inputs.get("recipe", {}):
            raise ValueError("it has no recipe")
        return inputs
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{folder / INPUTS_FILE}: needed to resume the run, cannot be read ({error})") from error


def write_inputs(folder: Path, inputs: Inputs) -> None:
    """Write what a run is started with."""
    write_text(folder / INPUTS_FILE, json.dumps(inputs, indent=1) + "\n")


def recipe_values(recipe: Recipe) -> dict[str, Any]:
    """Return the values of a recipe by dotted key, as they are after a round trip through JSON."""
    values, processes = flat(recipe.model_dump(mode="json")), int(os.environ.get("WORLD_SIZE", "1"))
    rows = {f"{key} x processes": values[key] * processes for key in values if _follows_processes(key, values)}
    return values | rows


def _follows_processes(key: str, values: Mapping[str, Any]) -> bool:
    """Whether a key holds rows per batch and process, whose product with the processes must stay."""
    return key.endswith(".batch_size") and key.startswith(("training.", "train.")) and values[key] is not None


def check_recipe(folder: Path, recipe: Recipe) -> int:
    """Refuse to resume a run with a recipe that differs in more than what may change; return its steps so far."""
    before, now = read_inputs(folder)["recipe"], recipe_values(recipe)
    if keys := [key for key in differing(before, now) if key not in FREE_KEYS and not _follows_processes(key, now)]:
        shown = "; ".join(f"{key} was {before.get(key)!r} and is {now.get(key)!r}" for key in keys[:3])
        raise RecipeError(f"{folder}: cannot be resumed with another recipe: {shown}")
    steps: int = before["training.steps"]
    if recipe.training.steps < steps:
        raise RecipeError(f"{folder}: training.steps: was {steps}, may grow but not shrink")
    return steps


def check_inputs(folder: Path, inputs: Inputs) -> None:
    """Refuse to resume a run whose data or encoder has changed; warn of other package versions."""
    before = read_inputs(folder)
    for kind, now in inputs.items():
        was = before.get(kind, {})
        changed = differing(was, now)
        if kind == "versions" and changed:
            shown = ", ".join(f"{name} {was.get(name)} -> {now.get(name)}" for name in changed)
            logger.warning("%s: resumed with other versions, results may differ: %s", folder, shown)
        elif kind not in {"versions", "recipe"} and changed:
            raise DataError(f"{folder}: {kind} {', '.join(changed)}: changed since the run was started")


def refuse_taken_folder(folder: Path, recipe: Recipe, *, resume: bool) -> None:
    """Make sure that the output holds no started run, or this one if it is resumed."""
    # A run that could not start, or was killed before, leaves a recipe or folders of stages and may be tried again.
    traces = [folder / runs.TRACE_FILE, *(folder / runs.STAGES_FOLDER).glob(f"*/{runs.TRACE_FILE}")]
    if not any(path.exists() for path in (*traces, folder / runs.RECORD_FILE)):
        (folder / INPUTS_FILE).unlink(missing_ok=True)
        return
    if not resume:
        raise RecipeError(f"{folder}: already holds a run; resume it with --resume or choose another output")
    steps = check_recipe(folder, recipe)
    if (folder / runs.RECORD_FILE).exists():
        if steps == recipe.training.steps:
            raise RecipeError(f"{folder}: the run is finished, nothing to resume; more training.steps extend it")
        if not runs.list_checkpoints(folder / runs.CHECKPOINTS_FOLDER):
            raise RecipeError(f"{folder}: the run is finished and has no checkpoint from which it could be extended")


def collect_inputs(recipe: Recipe, data: Data) -> Inputs:
    """Return what a run is started with, except for its encoder."""
    return {
        "recipe": recipe_values(recipe),
        "training set": data.train.fingerprints,
        "dev set": {name: rows.fingerprint for name, rows in data.dev.items()},
        "dev task": {task.name: task.fingerprint for task in data.selection},
        "test set": {name: task.fingerprint for name, task in data.test.items()},
        "versions": runs.versions(),
    }
