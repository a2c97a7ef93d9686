"""What a study may say, and where studies and settings are found."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import Field, ValidationError, model_validator

from mixfluence.errors import RecipeError
from mixfluence.schema import Section

STUDIES = Path(__file__).parents[1] / "studies"
SETTINGS = STUDIES / "settings"
Count = Annotated[int, Field(ge=1)]
View = Literal["scores", "cost", "heat-map", "weights", "trajectories"]


class Setting(Section):
    """Where a study can take place: a recipe, and what its samplers are like there.

    Attributes:
        recipe: Everything but the sampler.
        samplers: Word -> the recipe's `strategy`. Rows with a word that is not here are left out.
        references: Word -> changes of the recipe that make it the model to be tested as it is.
        expert: The recipe whose start the word `expert` stands for.
        teacher: Whether rows get negatives and scores by BM25 before training.
        gpus: How many each run trains on, with the recipe's batch on each.
    """

    recipe: str
    samplers: dict[str, dict[str, Any]]
    references: dict[str, list[str]] = Field(default_factory=dict)
    expert: str | None = None
    teacher: bool = False
    gpus: Count = 1


class Place(Section):
    """A study in one setting.

    Attributes:
        setting: Its name.
        targets: Dev and test sets that count, the columns of the table; all of the recipe's if not given.
        starts: Target -> temperature of the start, for rows that say none.
        paper: Tables of the paper that stand beside; rows find their figure in the first unless they name another.
        changes: Changes of the recipe in this study.
    """

    setting: str
    targets: list[str] | None = None
    starts: dict[str, float] = Field(default_factory=dict)
    paper: list[str] = Field(default_factory=list)
    changes: list[str] = Field(default_factory=list)


class Row(Section):
    """A line of the table.

    Attributes:
        label: What it is called; also its folder, so that one label means one run in all studies of a setting. A row
            for all targets and one for each of them may share it.
        sampler: A word of the setting.
        reference: A word of the setting: a model that is tested as it is. `bm25` is always known.
        init: A temperature, or `expert`.
        targets: One run guided by all targets, or one for each, judged on its own test set.
        train: One run with all training sets, or a line for each of them alone.
        resampled: Train on as many rows drawn from train and dev together, others for each seed.
        seeds: How many, if other than the study's.
        changes: Further changes of the recipe.
        paper: What the row of the paper is labelled with.
        table: The table of the paper that has it, if not the first of the setting.
        deviation: The row of the paper that has the spread of that one.
    """

    label: str
    sampler: str | None = None
    reference: str | None = None
    init: float | Literal["expert"] | None = None
    targets: Literal["jointly", "each"] = "jointly"
    train: Literal["all", "each"] = "all"
    resampled: bool = False
    seeds: Count | None = None
    changes: list[str] = Field(default_factory=list)
    paper: dict[str, str | float] | None = None
    table: str | None = None
    deviation: dict[str, str | float] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Row:
        if (self.sampler is None) == (self.reference is None):
            raise ValueError(f"row {self.label!r}: give either a sampler or a reference")
        return self


class Study(Section):
    """A grid of runs and how its table looks.

    Attributes:
        name: As its file.
        purpose: The question, in a sentence.
        measure: What is shown, one of the measures of an evaluation.
        seeds: Runs of each cell.
        views: The tables, in their order.
        settings: `paper`, `twin` and perhaps others -> where it takes place.
        rows: Lines of the table.
    """

    name: str
    purpose: str
    measure: Literal["ndcg@10", "mrr@10", "recall@100", "map@100"] = "ndcg@10"
    seeds: Count = 3
    views: Annotated[list[View], Field(min_length=1)]
    settings: Annotated[dict[str, Place], Field(min_length=1)]
    rows: Annotated[list[Row], Field(min_length=1)]

    @model_validator(mode="after")
    def _labels_differ(self) -> Study:
        labels = [(row.label, row.targets) for row in self.rows]
        if twice := [label for number, label in enumerate(labels) if label in labels[:number]]:
            raise ValueError(f"the label {twice[0][0]!r} is there twice")
        return self

    @model_validator(mode="after")
    def _tables_stand_beside(self) -> Study:
        for row in self.rows:
            for name, place in self.settings.items():
                if row.table is not None and row.table not in place.paper:
                    raise ValueError(f"row {row.label!r}: the setting {name!r} has no table {row.table!r} beside it")
        return self

    def place(self, name: str) -> Place:
        """Return where the study takes place.

        Raises:
            RecipeError: If it has no setting of that name.
        """
        if name not in self.settings:
            raise RecipeError(f"{self.name}: has no setting {name!r}, it has {', '.join(self.settings)}")
        return self.settings[name]


def study_names() -> list[str]:
    """Return the names of the studies that ship with the package."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def load_study(name: str) -> Study:
    """Read a study that ships with the package, or one of the user's in a file.

    A study that says `extends: NAME` has all keys of that study which it does not set itself.

    Raises:
        RecipeError: If there is no such study, or something in it is wrong.
    """
    return _checked(Study, *_read_study(name))


def load_setting(name: str) -> Setting:
    """Read a setting, by name or from a file as for studies."""
    path = _find(name, SETTINGS, "setting")
    return _checked(Setting, path, _read(path))


def _read_study(name: str) -> tuple[Path, dict[str, Any]]:
    path = _find(name, STUDIES, "study")
    data = _read(path)
    if "extends" in data:
        data = _read(_find(str(data.pop("extends")), STUDIES, "study")) | data
    return path, data


def _find(name: str, folder: Path, kind: str) -> Path:
    for path in (Path(name), folder / f"{name}.yaml"):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in folder.glob("*.yaml")))
    raise RecipeError(f"{name}: no such file, and no {kind} of that name ships with mixfluence ({known})")


def _read(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecipeError(f"{path}: cannot be read ({error})") from error
    if not isinstance(data, dict):
        raise RecipeError(f"{path}: expected a mapping, found {type(data).__name__}")
    return data


_Kind = TypeVar("_Kind", bound=Section)


def _checked(kind: type[_Kind], path: Path, data: dict[str, Any]) -> _Kind:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        message = first["msg"].removeprefix("Value error, ")
        raise RecipeError(f"{path}: {place + ': ' if place else ''}{message}") from error
