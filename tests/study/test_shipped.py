"""The studies that ship.

- Every one is valid, has a twin, and every cell's recipe loads without any data.
- What shares a folder is the same run, whichever study asks for it.
- Rows name rows of the paper that exist; twins train for 400 steps and have three seeds.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from mixfluence.config.files import RECIPES, load_recipe
from mixfluence.config.samplers import StaticSection
from mixfluence.paper import read_table
from mixfluence.study import Cell, build_cells, load_study, study_names
from mixfluence.study.beside import paper_cell
from mixfluence.study.schema import SETTINGS, load_setting

pytestmark = pytest.mark.slow

shipped = cache(load_study)
ALL = [(name, setting) for name in study_names() for setting in shipped(name).settings]
OF_THE_ISSUE = {
    *("start-fever", "start-joint", "individual", "heat-map", "reptile", "inner-steps", "subset-size", "cost-quality"),
    *("gpu-hours", "leakage-beir", "leakage-mldr", "trajectories", "mldr", "sentence-transformers"),
}
SETTINGS_OF_ALL = {path.stem for path in SETTINGS.glob("*.yaml")}


@cache
def cells(name: str, setting: str) -> list[Cell]:
    study = shipped(name)
    return build_cells(study, study.place(setting), Path("out"), seeds=1)


def test_every_study_is_there_in_the_papers_setting_and_in_a_twin() -> None:
    assert set(study_names()) >= OF_THE_ISSUE
    for name in study_names():
        assert set(shipped(name).settings) >= {"paper", "twin"}
        assert shipped(name).name == name
    used = {place.setting for name in study_names() for place in shipped(name).settings.values()}
    assert used == SETTINGS_OF_ALL


@pytest.mark.parametrize(("name", "setting"), ALL)
def test_every_cell_has_a_recipe_and_every_row_of_the_paper_exists(name: str, setting: str) -> None:
    study, found = shipped(name), cells(name, setting)
    place = study.place(setting)
    tables = [read_table(table) for table in place.paper]
    for row in study.rows if tables else []:
        assert bool(paper_cell(tables[0], row).text) == (row.paper is not None)
    targets = place.targets or found[0].recipe.test
    for cell in found:
        assert cell.folder.is_relative_to("out")
        assert set(cell.recipe.test) == ({cell.target} if cell.target else set(cell.recipe.test) | set(targets))
    assert len({cell.folder for cell in found}) == len(found)


def test_every_row_has_runs_somewhere() -> None:
    for name in study_names():
        study = shipped(name)
        labels = {cell.row.label for setting in study.settings for cell in cells(name, setting)}
        assert labels == {row.label for row in study.rows}


def test_a_folder_is_one_run_whichever_study_asks_for_it() -> None:
    runs: dict[tuple[str, Path], Cell] = {}
    shared = 0
    for name, setting in ALL:
        for cell in cells(name, setting):
            first = runs.setdefault((shipped(name).place(setting).setting, cell.folder), cell)
            assert first.recipe == cell.recipe, f"{name}, {setting}: {cell.folder}"
            shared += first is not cell
    assert shared > 100


@pytest.mark.parametrize("recipe", ["twin-beir7", "twin-st32", "twin-st32-expert", "twin-mldr13", "twin-mldr13-kd"])
def test_twins_are_long_enough(recipe: str) -> None:
    assert load_recipe(RECIPES / f"{recipe}.yaml", files_may_be_missing=True).training.steps >= 400


def test_all_studies_have_three_seeds() -> None:
    assert all(shipped(name).seeds == 3 for name in study_names())


def test_the_twin_of_mldr_is_as_large_and_unequal_as_the_papers() -> None:
    ours, theirs = (
        load_recipe(RECIPES / f"{name}.yaml", files_may_be_missing=True) for name in ("twin-mldr13", "mldr13")
    )
    assert (len(ours.train), len(ours.dev), len(ours.test)) == (23, 13, 13)
    shares = []
    for recipe, english in ((ours, ("en", "x-en-squadbt")), (theirs, ("en",))):
        assert isinstance(recipe.strategy, StaticSection)
        weights = recipe.strategy.init.weights
        assert weights is not None
        assert set(weights) == set(recipe.train)
        total = sum(weights.values())
        shares.append(
            [sum(weights[name] for name in english) / total, weights["zh"] / total, min(weights.values()) / total]
        )
    assert shares[0] == pytest.approx(shares[1], rel=0.02)
    assert load_setting("twin-mldr13").samplers["inf-dds"]["preset"] == "paper-mldr"


def test_the_papers_rows_all_stand_in_our_tables() -> None:
    for name, table in {
        "start-fever": "fever",
        "start-joint": "beir5-joint",
        "mldr": "mldr13",
        "reptile": "reptile",
    }.items():
        named = [read_table(table).row(**row.paper) for row in shipped(name).rows if row.paper]
        assert sorted(map(str, named)) == sorted(map(str, read_table(table).rows))
