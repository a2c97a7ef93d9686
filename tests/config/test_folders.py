"""A folder where a recipe is expected.

- Every verb that takes a recipe, and `extends`, name the file in the folder to give instead.
- The suggested command resumes a stopped run; for a finished run there is no such suggestion.
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
    """A folder with a recipe, below the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "place").mkdir()
    (tmp_path / "place" / "recipe.yaml").write_text(SMALL, encoding="utf-8")
    return Path("place")


def message_for(name: str) -> str:
    with pytest.raises(RecipeError) as refused:
        find_recipe(name)
    return str(refused.value)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_names_the_file_to_give(folder: Path, verb: str) -> None:
    refused = CliRunner().invoke(app, shlex.split(verb.format(folder))).exception
    assert isinstance(refused, RecipeError)
    assert str(refused).startswith("place: ")
    assert "place/recipe.yaml" in str(refused)


def test_extending_a_folder_names_the_file_to_give(folder: Path) -> None:
    (folder / "recipe.yaml").write_text(f"extends: {folder}\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"^place: .*place/recipe\.yaml$"):
        load_recipe(folder / "recipe.yaml")


def test_a_folder_without_a_recipe_has_its_own_message(folder: Path) -> None:
    (folder / "recipe.yaml").unlink()
    assert message_for("place/") == "place: expected a recipe file, found a folder without recipe.yaml"
    (folder / "recipe.yaml").mkdir()
    assert message_for("place") == message_for("place/")


@pytest.mark.parametrize("begun", ["trace.jsonl", "stages"])
def test_only_an_unfinished_run_suggests_to_resume(folder: Path, begun: str) -> None:
    assert "--resume" not in message_for("place")
    (folder / begun).touch()
    assert "'mixfluence train place/recipe.yaml --resume'" in message_for("place")
    (folder / "record.json").touch()
    assert "--resume" not in message_for("place")


@pytest.mark.slow
def test_the_suggested_command_resumes_the_run(
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
