"""The cells of a study: a job for each row, target and seed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mixfluence import RecipeError, SourceSection
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import find_recipe, load_recipe
from mixfluence.sweep import PYTHON, Job, folder_name
from reproduction.derived import Derivation, derive
from reproduction.reference import BM25
from reproduction.schema import FOLDER, Place, Row, Setting, Study, load_setting

RECIPES = FOLDER / "recipes"
# The folder of all data in the paths of recipes; `--data` replaces it.
DATA = "data"
# Derived training rows, beside the run folders.
ROWS = "rows"
SECTIONS = ("train", "dev", "test")
REFERENCE = f"import sys; sys.path.append({str(FOLDER.parent)!r}); from reproduction.reference import main; main()"


@dataclass(frozen=True)
class Cell(Job):
    """One run of a study.

    Attributes:
        row: Its row of the study.
        title: The title of that row in tables.
        target: The only set that guides and tests it; None if it is for all.
        derivations: Files of rows to write before it can start.
        source: The recipe with the rows that they are made of, as many, by which the cost is planned.
    """

    row: Row
    title: str
    target: str | None
    derivations: tuple[Derivation, ...] = ()
    source: Recipe | None = None

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return self.recipe.seed

    def command(self, recipe: Path, *, gpus: int) -> list[str]:
        """Return the command that trains, or only tests a reference."""
        if self.row.reference:
            return [*PYTHON, "-c", REFERENCE, str(recipe), self.row.reference]
        return super().command(recipe, gpus=gpus)

    def cost(self, gpus: int) -> float:
        """Return the cost in training steps; testing a reference costs none."""
        return 0.0 if self.row.reference else Job(self.name, self.source or self.recipe).cost(gpus)


def build_cells(
    study: Study,
    place: Place,
    output: Path,
    *,
    data: Path | None = None,
    seeds: int | None = None,
    changes: Sequence[str] = (),
) -> list[Cell]:
    """Return all cells of a study, the first seed of every row first.

    Only recipes are read; `missing_files` tells which data is missing.

    Args:
        study: What to run.
        place: In which of its settings.
        output: The folder of all run folders.
        data: Replaces the folder `data` in the paths of recipes.
        seeds: Runs of each row, instead of the study's.
        changes: Further changes to every recipe, `key=value`.

    Raises:
        RecipeError: If a recipe is wrong or lacks a target.
    """
    setting = load_setting(place.setting)
    columns = place.targets or list(load(setting, [*place.changes, *changes]).test)
    cells = []
    for row in study.rows:
        for only in _training_sets(row, setting):
            label = f"{row.label} {only}" if only else row.label
            title = title_of(label, row, columns)
            # An untrained model scores the same whatever the seed.
            count = 1 if row.reference else seeds or row.seeds or study.seeds
            for target in columns if row.targets == "each" else [None]:
                strategy = _strategy(row, place, setting, target)
                base = load(setting, [*place.changes, *strategy, *row.changes, *changes])
                base = move(_narrow(base, only, target), data)
                for seed in range(count):
                    name = f"{folder_name(f'{label} for {target}' if target else label)}/{seed}"
                    recipe = base.model_copy(update={"seed": seed, "output": output / name})
                    made, files = derive(recipe, output / ROWS, resampled=row.resampled, teacher=setting.teacher)
                    cells.append(Cell(name, made, row, title, target, files, source=recipe))
    return sorted(cells, key=lambda cell: cell.seed)


def load(setting: Setting, changes: Sequence[str] = ()) -> Recipe:
    """Load a setting's recipe with changes; its data may be missing."""
    return load_recipe(_recipe_file(setting.recipe), [*setting.changes, *changes], files_may_be_missing=True)


def title_of(label: str, row: Row, columns: Sequence[str]) -> str:
    """Return the title of a row or group of rows; it tells runs for each target from runs for all."""
    return f"{label}, each target alone" if row.targets == "each" and len(columns) > 1 else label


def rows_left_out(study: Study, place: Place) -> list[Row]:
    """Return the rows without cells, because the setting has no such sampler or model."""
    setting = load_setting(place.setting)
    return [row for row in study.rows if not _is_known(row, setting)]


def missing_files(cells: Sequence[Cell]) -> list[Path]:
    """Return the data files and folders that do not exist."""
    files = [derivation for cell in cells for derivation in cell.derivations]
    sources = [source for cell in cells for section in SECTIONS for source in getattr(cell.recipe, section).values()]
    sources += [source for derivation in files for source in derivation.sources]
    paths = dict.fromkeys(path for source in sources if (path := getattr(source, "path", None)))
    return [path for path in paths if path not in {file.path for file in files} and not path.exists()]


def _recipe_file(name: str) -> Path:
    own = RECIPES / f"{name}.yaml"
    return own if own.exists() else find_recipe(name)


def _is_known(row: Row, setting: Setting) -> bool:
    return row.sampler in setting.samplers or row.reference in {BM25, *setting.references}


def _training_sets(row: Row, setting: Setting) -> list[str | None]:
    """Return the training sets that a row has a run for each of; None stands for all together."""
    if not _is_known(row, setting):
        return []
    return [None] if row.train == "all" else list(load(setting).train)


def _strategy(row: Row, place: Place, setting: Setting, target: str | None) -> list[str]:
    if row.reference:
        # Nothing is sampled, so the strategy is the same in every setting.
        return ["strategy={name: static, init: uniform}", *setting.references.get(row.reference, [])]
    strategy: dict[str, Any] = dict(setting.samplers[str(row.sampler)])
    start = row.init if row.init is not None else place.starts.get(str(target))
    if start == "expert":
        strategy["init"] = {"weights": _expert_weights(row, setting)}
    elif start is not None:
        strategy["init"] = "uniform" if math.isinf(float(start)) else {"temperature": float(start)}
    return [f"strategy={json.dumps(strategy)}"]


def _expert_weights(row: Row, setting: Setting) -> dict[str, float]:
    if setting.expert is None:
        raise RecipeError(f"row {row.label!r}: its setting has no expert weights")
    if isinstance(setting.expert, dict):
        return setting.expert
    data = yaml.safe_load(_recipe_file(setting.expert).read_text(encoding="utf-8"))
    weights: dict[str, float] = data["strategy"]["init"]["weights"]
    return weights


def _narrow(recipe: Recipe, only: str | None, target: str | None) -> Recipe:
    """Return the recipe for a single target or training set, if given."""
    names = {"train": only, "dev": target, "test": target}
    updates = {section: _only(getattr(recipe, section), name, section) for section, name in names.items() if name}
    return recipe.model_copy(update=updates)


def _only(sources: Mapping[str, SourceSection], name: str, section: str) -> dict[str, SourceSection]:
    if name not in sources:
        raise RecipeError(f"{section}: no set {name!r}; choose from {', '.join(sources)}")
    return {name: sources[name]}


def move(recipe: Recipe, data: Path | None) -> Recipe:
    """Return the recipe with another folder in place of `data`, if given."""

    def moved(source: SourceSection) -> SourceSection:
        path: Path | None = getattr(source, "path", None)
        if data is None or path is None or path.parts[:1] != (DATA,):
            return source
        return source.model_copy(update={"path": data.joinpath(*path.parts[1:])})

    sections = {
        section: {name: moved(source) for name, source in getattr(recipe, section).items()} for section in SECTIONS
    }
    return recipe.model_copy(update=sections)
