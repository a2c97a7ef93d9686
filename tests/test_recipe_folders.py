"""A folder where a recipe is expected: every verb that takes a recipe, and `extends`, name the file in it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mixfluence.cli import app
from mixfluence.errors import RecipeError
from mixfluence.recipe_yaml import find_recipe, load_recipe
from tests.test_recipes import SMALL

VERBS = [
    *("train {}", "train {} --resume", "train {} training.steps=3", "plan {}", "plan {} --processes 2"),
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
    assert "recipe.yaml" not in message_for("place/")
    (folder / "recipe.yaml").mkdir()
    assert message_for("place") == message_for("place/")


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(RecipeError, match=r"pipe\.yaml"):
        find_recipe(str(tmp_path / "pipe.yaml"))


def test_evaluating_a_run_does_not_run_its_code_unasked(folder: Path) -> None:
    text = SMALL.replace("{name: wordllama}", "{name: x, trust_remote_code: true}") + "test: [pandas]\n"
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    refused = CliRunner().invoke(app, ["evaluate", str(folder)]).exception
    assert isinstance(refused, RecipeError)
    assert "--trust-remote-code" in str(refused)


def test_a_revision_is_that_of_the_model_of_the_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The saved model of a run has none, so that a run with a revision could not be evaluated."""
    text = SMALL.replace("{name: wordllama}", "{name: me/x, revision: abc}") + "test: [pandas]\n"
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    (folder / "model").mkdir()
    loaded: list[tuple[str, str | None]] = []
    monkeypatch.setattr("mixfluence.data.formats.read_task", lambda name, source: None)
    monkeypatch.setattr("mixfluence.build.build_model", lambda model: loaded.append((model.name, model.revision)))
    monkeypatch.setattr("mixfluence.testing.evaluate_tasks", lambda *given, **options: {})
    result = CliRunner().invoke(app, ["evaluate", str(folder), "me/x", "me/other"])
    assert result.exception is None
    assert loaded == [("place/model", None), ("me/x", "abc"), ("me/other", None)]
