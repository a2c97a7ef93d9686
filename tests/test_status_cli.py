"""`mixfluence status` of a finished run: which model was kept, and what it scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mixfluence.experiment import run
from mixfluence.recipe_yaml import load_recipe
from tests.hostile.workplace import Case, run_program
from tests.test_experiment import recipe_path

__all__ = ["recipe_path"]

pytestmark = pytest.mark.slow


def shown(folder: Path, capfd: pytest.CaptureFixture[str]) -> str:
    capfd.readouterr()
    assert run_program(Case("nothing", "status run"), folder) == 0
    return capfd.readouterr().out


def test_all_that_was_measured_is_shown_for_every_test_set(
    recipe_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(load_recipe(recipe_path, ["selection.every=3"]))
    record = json.loads((tmp_path / "run" / "record.json").read_text(encoding="utf-8"))
    scores = record["scores"]
    text = shown(tmp_path, capfd).rstrip()
    assert f"from step {record['selected_step']}" in text
    assert "\ntest scores x 100\n" in text
    lines = [line.split() for line in text.rstrip().splitlines() if "─" not in line]
    measures = ["ndcg@10", "mrr@10", "recall@100", "map@100"]
    means = {measure: (scores["small"][measure] + scores["big"][measure]) / 2 for measure in measures}
    expected = [
        [name, *(f"{100 * values[measure]:.1f}" for measure in measures)]
        for name, values in {"average": means, **scores}.items()
    ]
    assert lines[-4:] == [measures, *expected]

    (tmp_path / "run" / "record.json").unlink()
    text = shown(tmp_path, capfd)
    assert "from step" not in text
    assert "test scores" not in text


def test_names_are_text_and_one_set_has_no_average(
    recipe_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(load_recipe(recipe_path, [f"test={{'[bold]loud': {{path: {tmp_path}/data/small}}}}"]))
    *_, names, _, scores = shown(tmp_path, capfd).rstrip().splitlines()
    assert "ndcg@10" in names
    assert scores.startswith("[bold]loud ")


def test_without_a_test_set_only_the_model_is_told_of(
    recipe_path: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(load_recipe(recipe_path, ["test={}", "selection=null"]))
    text = shown(tmp_path, capfd)
    assert "from step 12" in text
    assert "scores" not in text
