"""The study of raw starts.

- Its page shows the tables of the stored results, number by number.
- Its files describe the runs that were measured.
- Every run of the grid has a valid recipe, and gives a line and the scores of each query for the tables.
"""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from reproduction.cells import build_cells, load
from reproduction.raw_runs import RESULTS, jobs_of, perform, recipe_of
from reproduction.raw_start import CONTROLS, grid_tables, tables
from reproduction.schema import FOLDER, load_setting, load_study
from reproduction.workers import read_lines
from tests.test_experiment import write_domain


@pytest.mark.parametrize(
    "control",
    [
        pytest.param(control, marks=pytest.mark.soak if number else pytest.mark.slow)
        for number, control in enumerate(CONTROLS)
    ],
)
def test_the_page_shows_the_stored_results(control: str) -> None:
    page = (FOLDER / "twins" / "raw-start-joint.md").read_text(encoding="utf-8")
    for table in tables([control]):
        assert table.to_markdown() in page, table.title


def test_the_study_repeats_the_measured_runs() -> None:
    study, setting = load_study("raw-start/study.yaml"), load_setting("raw-start/setting.yaml")
    cells = {(cell.row.label, cell.seed): cell.recipe for cell in build_cells(study, study.place("twin"), Path("out"))}
    final = {
        (line["row"], line["seed"]): line for line in read_lines(RESULTS / "runs.jsonl") if line["stage"] == "final"
    }
    assert cells.keys() == final.keys()
    for key, line in final.items():
        recipe = cells[key]
        if "strategy" not in line:
            continue
        own = line["strategy"] | ({"encoder": "minilm"} if line["sampler"] == "crisp" else {})
        assert recipe.strategy == load(setting, [f"strategy={json.dumps(own)}"]).strategy, key
        assert (recipe.training.steps, recipe.training.learning_rate) == (line["steps"], line["learning_rate"])
        assert recipe.training.warmup_steps == line["steps"] // 10
        assert recipe.model.name == line["start"]


def options_in(folder: Path, *changes: str) -> Namespace:
    return Namespace(data=folder, set=list(changes), out=folder / "runs.jsonl")


def test_every_run_of_the_grid_has_a_recipe(tmp_path: Path) -> None:
    jobs = [job for stage in ("rates", "final") for job in jobs_of(stage, 1)]
    recipes = [recipe_of(options_in(tmp_path), job, tmp_path / "run", files_may_be_missing=True) for job in jobs]
    for job, recipe in zip(jobs, recipes, strict=True):
        target, _, pool = job["setting"].partition(" ")
        assert set(recipe.test) == (set() if job["stage"] == "rates" else set(recipe.dev))
        assert (target in recipe.train) == (pool == "in")
        assert recipe.training.warmup_steps * 10 == recipe.training.steps
        assert pool != "out" or job["strategy"]["name"] != "target-only"
    assert {recipe.model.name for recipe in recipes} == {"distilbert", "gemma"}
    assert len({(job["stage"], job["setting"], job["row"]) for job in jobs}) == len(jobs)
    # Rows of the study are not repeated.
    labels = {row.label for row in load_study("raw-start/study.yaml").rows}
    assert labels.isdisjoint(job["row"] for job in jobs if job["setting"] == "joint")


@pytest.mark.slow
def test_a_run_of_the_grid_gives_a_line_and_scores_by_query(tiny_bert_folder: Path, tmp_path: Path) -> None:
    jobs = [job for job in jobs_of("final", 1) if job["setting"] == "cosqa out"]
    for name in recipe_of(options_in(tmp_path), jobs[0], tmp_path, files_may_be_missing=True).train | {"cosqa": None}:
        write_domain(tmp_path / "english" / name, 30, len(name))
    changes = [f"model={{name: {tiny_bert_folder}, query_length: 8, passage_length: 16}}", "training.batch_size=4"]
    changes.append("training.steps=10")
    chosen = [job for job in jobs if job["row"] in {"static uniform", "inf-dds uniform"}]
    with (tmp_path / "runs.jsonl").open("a", encoding="utf-8") as file:
        for number, job in enumerate(chosen):
            line = {**job, **perform(options_in(tmp_path, *changes), job, tmp_path / str(number))}
            assert line["test"].keys() == line["dev_small"].keys() == {"cosqa"}
            assert sum(line["rows_drawn"].values()) == 40
            file.write(json.dumps(line) + "\n")
    scores, costs, paired = grid_tables(tmp_path / "runs.jsonl")
    assert list(scores.columns["row"]) == [job["row"] for job in chosen]
    assert list(paired.columns["row"]) == ["inf-dds uniform"]
    assert costs.columns["static runs"][0] == "1.00"
