"""Studies and settings as YAML files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from mixfluence import RecipeError

FOLDER = Path(__file__).parent
STUDIES, SETTINGS = FOLDER / "studies", FOLDER / "settings"
Count = Annotated[int, Field(ge=1)]
View = Literal["scores", "cost", "heat-map", "weights", "trajectories"]


class Strict(BaseModel):
    """Refuses unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Setting(Strict):
    """A recipe and the samplers as configured for it.

    Attributes:
        recipe: The recipe without its sampler.
        changes: Changes to that recipe, `key=value`.
        samplers: Word -> the recipe's `strategy`. Rows whose word is missing here are left out.
        references: Word -> changes to the recipe that select the model to test as it is.
        expert: The initial weights that the word `expert` stands for, or the recipe that has them.
        teacher: Whether rows get negatives and scores by BM25 before training.
        gpus: GPUs of each run, with the recipe's batch on each.
    """

    recipe: str
    changes: list[str] = []
    samplers: dict[str, dict[str, Any]]
    references: dict[str, list[str]] = {}
    expert: str | dict[str, float] | None = None
    teacher: bool = False
    gpus: Count = 1


class Place(Strict):
    """A study in one setting.

    Attributes:
        setting: The name of the setting.
        targets: Dev and test sets that are the columns of the table; all of the recipe's by default.
        starts: Target -> initial temperature, for rows without one.
        paper: Tables of the paper to show; rows find their number in the first unless they name another.
        changes: Changes to the recipe in this study.
    """

    setting: str
    targets: list[str] | None = None
    starts: dict[str, float] = {}
    paper: list[str] = []
    changes: list[str] = []


class Row(Strict):
    """A row of the table.

    Attributes:
        label: Title and folder, so that one label means one run in all studies of a setting. A row for all targets
            and one for each of them may share it.
        sampler: A word of the setting.
        reference: A word of the setting: a model that is tested without training. `bm25` is always known.
        init: The initial temperature, or `expert`.
        targets: One run guided by all targets, or a run for each, tested on its own test set.
        train: One run on all training sets, or a row for each of them.
        resampled: Train on as many rows drawn from train and dev together, different for each seed.
        seeds: Runs, if different from the study's.
        changes: Further changes to the recipe.
        paper: Labels of the paper's row.
        table: The paper's table, if not the first of the setting.
        deviation: Labels of the paper's row with the standard deviation.
    """

    label: str
    sampler: str | None = None
    reference: str | None = None
    init: float | Literal["expert"] | None = None
    targets: Literal["jointly", "each"] = "jointly"
    train: Literal["all", "each"] = "all"
    resampled: bool = False
    seeds: Count | None = None
    changes: list[str] = []
    paper: dict[str, str | float] | None = None
    table: str | None = None
    deviation: dict[str, str | float] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Row:
        if (self.sampler is None) == (self.reference is None):
            raise ValueError(f"row {self.label!r}: give either a sampler or a reference")
        return self


class Study(Strict):
    """A grid of runs and its tables.

    Attributes:
        name: The name of its file.
        purpose: The question it answers.
        measure: The measure shown.
        seeds: Runs of each row.
        views: The tables, in order.
        settings: `paper`, `twin` and possibly others -> the study there.
        rows: Rows of the table.
    """

    name: str
    purpose: str
    measure: Literal["ndcg@10", "mrr@10", "recall@100", "map@100"] = "ndcg@10"
    seeds: Count = 3
    views: Annotated[list[View], Field(min_length=1)]
    settings: Annotated[dict[str, Place], Field(min_length=1)]
    rows: Annotated[list[Row], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> Study:
        seen = set()
        for row in self.rows:
            if (row.label, row.targets) in seen:
                raise ValueError(f"duplicate label {row.label!r}")
            seen.add((row.label, row.targets))
            for name, place in self.settings.items():
                if row.table is not None and row.table not in place.paper:
                    raise ValueError(f"row {row.label!r}: the setting {name!r} does not show the table {row.table!r}")
        return self

    def place(self, name: str) -> Place:
        """Return the study in a setting.

        Raises:
            RecipeError: If the study has no setting of that name.
        """
        if name not in self.settings:
            raise RecipeError(f"{self.name}: no setting {name!r}; choose from {', '.join(self.settings)}")
        return self.settings[name]


def study_names() -> list[str]:
    """Return the names of all studies in this folder."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def load_study(name: str) -> Study:
    """Read a study by name or file. `extends: NAME` takes the keys of another study that this one does not set.

    Raises:
        RecipeError: If there is no such study, or it is invalid.
    """
    return _load(Study, name, STUDIES)


def load_setting(name: str) -> Setting:
    """Read a setting by name or file; errors are as for studies."""
    return _load(Setting, name, SETTINGS)


_Kind = TypeVar("_Kind", bound=Strict)


def _load(kind: type[_Kind], name: str, folder: Path) -> _Kind:
    places = (Path(name), folder / f"{name}.yaml", FOLDER / name)
    path = next((path for path in places if path.is_file()), None)
    if path is None:
        known = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
        raise RecipeError(f"{name}: no such file, and not one of the {folder.name} ({known})")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
        if isinstance(data, dict) and "extends" in data:
            data = _load(kind, data.pop("extends"), folder).model_dump(exclude_unset=True) | data
        return kind.model_validate(data)
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML ({error})") from error
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise RecipeError(f"{path}: {place}: {first['msg'].removeprefix('Value error, ')}") from error
