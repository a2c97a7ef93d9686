"""A folder where a recipe is expected.

- Every verb that takes a recipe, and a recipe that extends one, says which file in the folder to give instead.
- What it says to type goes on with a run that was stopped; a run that is finished is not said to go on.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mixfluence.cli import app
from mixfluence.errors import RecipeError
from mixfluence.experiment import run
from mixfluence.recipe_yaml import find_recipe, load_recipe
from tests.hostile.workplace import Case, run_program
from tests.test_experiment import StopAt, recipe_path
from tests.test_recipes import SMALL

__all__ = ["recipe_path"]

VERBS = [
    *(
        "train {}",
        "train {} --resume",
        "train {} training.steps=3",
        "plan {}",
        "plan {} --json",
        "plan {} --calibrate 5",
    ),
    *("recipes show {}", "recipes copy {} mine.yaml", "recipes check {}", "evaluate minilm --recipe {}"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where somebody has a recipe of their own, and stands beside it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "recipe.yaml").write_text(SMALL, encoding="utf-8")
    return Path("place")


def told(name: str) -> str:
    with pytest.raises(RecipeError) as refused:
        find_recipe(name)
    return str(refused.value)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_says_which_file_to_give(folder: Path, verb: str) -> None:
    refused = CliRunner().invoke(app, shlex.split(verb.format(folder))).exception
    assert isinstance(refused, RecipeError)
    assert str(refused) == "place: a folder, not a recipe; the recipe in it is place/recipe.yaml"


def test_a_recipe_that_extends_a_folder_says_so_too(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(f"extends: {folder}\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"^place: a folder, not a recipe; the recipe in it is place/recipe\.yaml$"):
        load_recipe(folder / "recipe.yaml")


def test_a_folder_without_a_recipe_is_told_apart(folder: Path) -> None:
    (folder / "recipe.yaml").unlink()
    assert told("place/") == "place: a folder, not a recipe, and there is no recipe.yaml in it"
    (folder / "recipe.yaml").mkdir()
    assert told("place") == "place: a folder, not a recipe, and there is no recipe.yaml in it"


@pytest.mark.parametrize("begun", ["trace.jsonl", "stages"])
def test_only_a_run_that_can_go_on_is_said_to(folder: Path, begun: str) -> None:
    assert "--resume" not in told("place")
    (folder / begun).touch()
    assert told("place").endswith(", and 'mixfluence train place/recipe.yaml --resume' goes on with its run")
    (folder / "record.json").touch()
    assert "--resume" not in told("place")


@pytest.mark.slow
def test_what_it_says_to_type_goes_on_with_the_run(
    recipe_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def error_of(command: str) -> str:
        capfd.readouterr()
        assert run_program(Case("a folder", command), tmp_path) == 2
        return capfd.readouterr().err

    with pytest.raises(KeyboardInterrupt):
        run(load_recipe(recipe_path), callbacks=[StopAt(9)])
    program, command = error_of("train run").split("'")[1].split(" ", 1)
    assert program == "mixfluence"
    assert run_program(Case("a run that was stopped", command), tmp_path) == 0
    assert (tmp_path / "run" / "record.json").exists()
    assert "nothing to resume" in error_of(command)
    assert "--resume" not in error_of("train run")
