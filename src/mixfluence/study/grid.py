"""A study becomes cells: every row, target and seed, with the recipe and the folder of its run."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mixfluence.data.formats import Source
from mixfluence.data.source import FileSource
from mixfluence.errors import RecipeError
from mixfluence.recipe import Recipe
from mixfluence.recipe_yaml import find_recipe, load_recipe
from mixfluence.study.derived import Derivation, derive
from mixfluence.study.schema import Place, Row, Setting, Study, load_setting

BM25 = "bm25"
# What recipes call the folder of all data; `--data` says where it is.
DATA = "data"
# The folder beside the run folders for rows that are made.
ROWS = "rows"


class _Line(NamedTuple):
    """A row, or what it is for one training set alone."""

    row: Row
    label: str
    only: str | None = None


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        row: The row of the study that it belongs to.
        title: What the table calls that row.
        target: The one set that it is guided by and judged on; None if it is for all.
        seed: Its seed.
        recipe: What to do; its output is the run folder.
        derivations: Files of rows that must be written before it can start.
    """

    row: Row
    title: str
    target: str | None
    seed: int
    recipe: Recipe
    derivations: tuple[Derivation, ...] = ()

    @property
    def folder(self) -> Path:
        """Its run folder."""
        return self.recipe.output

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.folder.parent.name}/{self.seed}"


def folder_name(label: str, target: str | None = None) -> str:
    """Return the folder of a row's runs, letters and digits as they are."""
    return re.sub(r"[^\w.]+", "-", f"{label} for {target}" if target else label).strip("-").lower()


def title_of(label: str, row: Row, columns: Sequence[str]) -> str:
    """Return what tables call a row, or a group of rows: runs for each target are told from those for all."""
    return f"{label}, each target alone" if row.targets == "each" and len(columns) > 1 else label


def rows_left_out(study: Study, place: Place) -> list[Row]:
    """Return the rows of a study that have no cells, because its setting does not know their sampler or model."""
    setting = load_setting(place.setting)
    return [row for row in study.rows if not _is_known(row, setting)]


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

    Nothing is read but recipes; `missing_files` says what would be missing.

    Args:
        study: What to run.
        place: In which of its settings.
        output: The folder of all run folders.
        data: Stands for the folder `data` in the paths of recipes.
        seeds: Runs of each cell, instead of what the study says.
        changes: Further changes of every recipe, `key=value`.

    Raises:
        RecipeError: If a recipe is wrong or lacks a target.
    """
    setting = load_setting(place.setting)
    lines = [line for row in study.rows if _is_known(row, setting) for line in _expand(row, setting)]
    columns = place.targets or list(_load(setting.recipe, [*place.changes, *changes]).test)
    cells = []
    for row, label, only in lines:
        # A model that is not trained gives the same scores again.
        count = 1 if row.reference else seeds or row.seeds or study.seeds
        title = title_of(label, row, columns)
        for target in columns if row.targets == "each" else [None]:
            strategy = _strategy(row, place, setting, target)
            own = [*place.changes, *strategy, *row.changes, *changes]
            base = _move(_narrow(_load(setting.recipe, own), only, target), data)
            for seed in range(count):
                folder = output / folder_name(label, target) / str(seed)
                recipe = base.model_copy(update={"seed": seed, "output": folder})
                recipe, files = derive(recipe, output / ROWS, resampled=row.resampled, teacher=setting.teacher)
                cells.append(Cell(row, title, target, seed, recipe, files))
    return sorted(cells, key=lambda cell: cell.seed)


def columns_of(place: Place, cells: Sequence[Cell]) -> list[str]:
    """Return the test sets that are a study's columns."""
    return place.targets or list(dict.fromkeys(name for cell in cells for name in cell.recipe.test))


def missing_files(cells: Sequence[Cell]) -> list[Path]:
    """Return the files and folders of data that are not on this machine."""
    derived = {derivation.path for cell in cells for derivation in cell.derivations}
    originals = [source for cell in cells for derivation in cell.derivations for source in derivation.sources]
    sources = [source for cell in cells for source in _sources(cell.recipe)] + originals
    paths = dict.fromkeys(source.path for source in sources if isinstance(source, FileSource))
    return [path for path in paths if path not in derived and not path.exists()]


def _is_known(row: Row, setting: Setting) -> bool:
    return row.sampler in setting.samplers or row.reference in {BM25, *setting.references}


def _expand(row: Row, setting: Setting) -> list[_Line]:
    if row.train == "all":
        return [_Line(row, row.label)]
    return [_Line(row, f"{row.label} {name}", name) for name in _load(setting.recipe, []).train]


def _load(name: str, changes: Sequence[str]) -> Recipe:
    return load_recipe(find_recipe(name), changes, files_may_be_missing=True)


def _strategy(row: Row, place: Place, setting: Setting, target: str | None) -> list[str]:
    if row.reference:
        # Nothing samples, so that the start is the same for every setting.
        return ["strategy={name: static, init: uniform}", *setting.references.get(row.reference, [])]
    strategy: dict[str, Any] = dict(setting.samplers[str(row.sampler)])
    start = row.init if row.init is not None else place.starts.get(str(target))
    if start is not None:
        strategy["init"] = _start(start, row, setting)
    return [f"strategy={json.dumps(strategy)}"]


def _start(start: float | str, row: Row, setting: Setting) -> str | dict[str, Any]:
    if start != "expert":
        return "uniform" if math.isinf(float(start)) else {"temperature": float(start)}
    if setting.expert is None:
        raise RecipeError(f"row {row.label!r}: its setting has no expert's weights to start from")
    init = getattr(_load(setting.expert, []).strategy, "init", None)
    if init is None or init.weights is None:
        raise RecipeError(f"{setting.expert}: its strategy has no weights, so it cannot be the expert's start")
    return {"weights": dict(init.weights)}


def _narrow(recipe: Recipe, only: str | None, target: str | None) -> Recipe:
    """Return the recipe for one target or one training set, if the run is about one."""
    updates: dict[str, dict[str, Source]] = {}
    if target is not None:
        updates = {"dev": _only(recipe.dev, target, "dev"), "test": _only(recipe.test, target, "test")}
    if only is not None:
        updates["train"] = _only(recipe.train, only, "train")
    return recipe.model_copy(update=updates)


def _only(sources: Mapping[str, Source], name: str, section: str) -> dict[str, Source]:
    if name not in sources:
        raise RecipeError(f"{section}: has no set {name!r}, it has {', '.join(sources)}")
    return {name: sources[name]}


def _move(recipe: Recipe, data: Path | None) -> Recipe:
    """Return the recipe with its data in another folder than `data`, if one is given."""

    def moved(source: Source) -> Source:
        if data is None or not isinstance(source, FileSource) or source.path.parts[:1] != (DATA,):
            return source
        return source.model_copy(update={"path": data.joinpath(*source.path.parts[1:])})

    sections = {
        section: {name: moved(source) for name, source in getattr(recipe, section).items()}
        for section in ("train", "dev", "test")
    }
    return recipe.model_copy(update=sections)


def _sources(recipe: Recipe) -> list[Source]:
    return [*recipe.train.values(), *recipe.dev.values(), *recipe.test.values()]
