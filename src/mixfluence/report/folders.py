"""Run folders as everything in this room reads them; a run that was killed half-way is one too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mixfluence.data.weights import read_weights
from mixfluence.errors import DataError
from mixfluence.evaluation.dev_queries import DevQuery, read_dev_queries
from mixfluence.evaluation.results import Evaluation, read_evaluation
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import load_recipe
from mixfluence.run_folder import (
    DEV_FOLDER,
    EVAL_FOLDER,
    RECIPE_FILE,
    RECORD_FILE,
    STAGES_FOLDER,
    TRACE_FILE,
    WEIGHTS_FILE,
    read_record,
    read_trace,
)


@dataclass(frozen=True)
class RunFolder:
    """What a run left behind, as far as it came.

    Attributes:
        path: The folder.
        recipe: What it was asked to do, every default filled in.
        record: What it ran on, cost and scored; empty if it has not finished.
        trace: Its lines, in order; see `mixfluence.training.callback`.
        scores: Per-query scores of each test set; empty if it has not finished.
        weights: The probability of each dataset at the end, by its name; empty if it has not finished.
        stages: The traces of the runs before it, for a method of several.
        dev: The queries of each dev set that it looked at in the end, in the order of the recipe.
    """

    path: Path
    recipe: Recipe
    record: dict[str, Any]
    trace: list[dict[str, Any]]
    scores: dict[str, Evaluation]
    weights: dict[str, float]
    stages: dict[str, list[dict[str, Any]]]
    dev: dict[str, list[DevQuery]] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether it came to its end."""
        return bool(self.record)


def seeds_together(runs: Sequence[RunFolder]) -> list[list[int]]:
    """Return positions of runs, those with equal recipes but for seed, output and name together.

    A seed that is there twice, as in a copy of a run, is no further evidence and starts a group of its own; a run that
    has not finished stands alone.
    """
    groups: dict[tuple[str, int], list[int]] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for number, run in enumerate(runs):
        recipe = repr(run.recipe.model_dump(exclude={"name", "seed", "output"})) if run.finished else str(number)
        groups.setdefault((recipe, seen[recipe, run.recipe.seed]), []).append(number)
        seen[recipe, run.recipe.seed] += 1
    return list(groups.values())


def read_run_recipe(path: Path) -> Recipe:
    """Read what a run was asked to do; `read_run` reads what it did too.

    Raises:
        DataError: If the folder does not hold a run; one that holds several is told apart from others.
    """
    if not (path / RECIPE_FILE).is_file():
        inside = sorted(file.parent for file in path.glob(f"*/{RECIPE_FILE}"))
        hint = f"; there are runs in it: {', '.join(map(str, inside[:3]))}{' ...' if inside[3:] else ''}"
        raise DataError(f"{path}: not a run folder, it has no {RECIPE_FILE}{hint if inside else ''}")
    return load_recipe(path / RECIPE_FILE, files_may_be_missing=True)


def read_run(path: Path) -> RunFolder:
    """Read a run folder.

    Raises:
        DataError: If the folder does not hold a run, or one of its files is damaged.
    """
    recipe = read_run_recipe(path)
    record = read_record(path / RECORD_FILE) if (path / RECORD_FILE).exists() else {}
    tested = list(record.get("scores", {}))
    evaluations = map(read_evaluation, (path / EVAL_FOLDER).glob("*.jsonl"))
    scores = {evaluation.dataset: evaluation for evaluation in evaluations}
    if missing := [name for name in tested if name not in scores]:
        raise DataError(f"{path / EVAL_FOLDER}: the per-query scores of {', '.join(missing)} are missing")
    return RunFolder(
        path,
        recipe,
        record,
        _read_trace(path / TRACE_FILE),
        {name: scores[name] for name in tested},
        read_weights(path / WEIGHTS_FILE) if record else {},
        {stage: _read_trace(path / STAGES_FOLDER / stage / TRACE_FILE) for stage in _stages(path)},
        _read_dev(path / DEV_FOLDER, recipe),
    )


def _read_dev(folder: Path, recipe: Recipe) -> dict[str, list[DevQuery]]:
    found = dict(map(read_dev_queries, folder.glob("*.jsonl")))
    return {name: found[name] for name in recipe.dev if name in found}


def _read_trace(path: Path) -> list[dict[str, Any]]:
    return read_trace(path) if path.exists() else []


def _stages(path: Path) -> list[str]:
    """Return the names of the earlier runs, in the order they were done."""
    folders = [folder for folder in (path / STAGES_FOLDER).glob("*") if folder.is_dir()]
    return [folder.name for folder in sorted(folders, key=lambda folder: folder.stat().st_ctime)]
