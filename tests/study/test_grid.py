"""A study becomes cells.

- Rows, targets and seeds are multiplied out; a row for each target or each training set is narrowed to it.
- `data` in paths is where the user says; what is missing is known before anything runs.
- Rows drawn anew are as many as before and come from train and dev; scored rows have negatives that nobody judged.
- A wrong study is one error that names the file.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from mixfluence.config.samplers import StaticSection

from mixfluence.data.formats import read_rows
from mixfluence.data.pairs import PairsSource
from mixfluence.errors import RecipeError
from mixfluence.study import Cell, build_cells, load_study
from mixfluence.study.grid import missing_files
from mixfluence.study.teacher import NEGATIVES, trigrams
from tests.study.conftest import WriteStudy, read_lines


def build(path: Path, **options: object) -> list[Cell]:
    study = load_study(str(path))
    options = {"data": path.parent / "elsewhere"} | options
    return build_cells(study, study.place("twin"), path.parent / "out", **options)  # type: ignore[arg-type]


def test_rows_and_seeds_are_multiplied_out(write_study: WriteStudy) -> None:
    cells = build(write_study())
    assert [cell.name for cell in cells] == ["static-1/0", "inf-dds-1/0", "static-1/1", "inf-dds-1/1"]
    assert [cell.recipe.seed for cell in cells] == [0, 0, 1, 1]
    assert [cell.recipe.strategy.name for cell in cells] == ["static", "inf-dds"] * 2
    assert len(build(write_study(), seeds=3)) == 6
    assert {cell.recipe.training.steps for cell in build(write_study(), changes=["training.steps=4"])} == {4}


def test_rows_for_each_target_or_training_set_are_narrowed(write_study: WriteStudy) -> None:
    each = {"label": "alone", "sampler": "inf-dds", "targets": "each", "seeds": 1}
    only = {"label": "only", "sampler": "static", "train": "each", "seeds": 1}
    zero = {"label": "zero-shot", "reference": "zero-shot"}
    other = {"label": "elsewhere", "sampler": "unknown here"}
    cells = build(write_study(rows=[each, only, zero, other]))
    assert [cell.name for cell in cells] == [
        f"{n}/0" for n in ("alone-for-big", "alone-for-small", "only-big", "only-small", "zero-shot")
    ]
    assert (
        [list(cell.recipe.dev) for cell in cells[:2]]
        == [list(cell.recipe.test) for cell in cells[:2]]
        == [["big"], ["small"]]
    )
    assert [list(cell.recipe.train) for cell in cells[2:4]] == [["big"], ["small"]]


def test_starts_are_a_temperature_the_targets_own_or_the_experts(write_study: WriteStudy) -> None:
    rows = [
        {"label": "uniform", "sampler": "static", "init": float("inf")},
        {"label": "own", "sampler": "static", "targets": "each"},
    ]
    path = write_study()
    twin = load_study(str(path)).settings["twin"].model_dump() | {"starts": {"big": 0.3, "small": 5.0}}
    cells = build(write_study(rows=rows, settings={"twin": twin}), seeds=1)
    assert [cell.recipe.strategy.init.temperature for cell in cells] == [float("inf"), 0.3, 5.0]  # type: ignore[union-attr]
    expert = [{"label": "expert", "sampler": "static", "init": "expert"}]
    with pytest.raises(RecipeError, match="'expert': its setting has no expert"):
        build(write_study(rows=expert))
    started = build(write_study({"expert": "twin-st32-expert"}, rows=expert))[0].recipe.strategy
    assert isinstance(started, StaticSection)
    assert (started.init.weights or {})["nq"] == 101


def test_data_is_where_the_user_says(write_study: WriteStudy) -> None:
    path = write_study()
    assert missing_files(build(path)) == []
    assert missing_files(build(path, data=None)) == [Path("data/tiny/big"), Path("data/tiny/small")]


def test_rows_drawn_anew_are_as_many_and_from_train_and_dev(write_study: WriteStudy) -> None:
    row = {"label": "mix", "sampler": "static", "resampled": True}
    first, second = build(write_study(rows=[row]))
    assert first.recipe.dev == {}
    assert missing_files([first, second]) == []
    drawn = []
    for cell in (first, second):
        for file in cell.derivations:
            file.write()
        source = cell.recipe.train["small"]
        assert isinstance(source, PairsSource)
        drawn.append(set(read_rows(source).rows["anchor"]))
    train, dev = (set(read_rows(source).rows["anchor"]) for source in second.derivations[1].sources)
    assert len(drawn[0]) == len(drawn[1]) == len(train) == 15
    assert drawn[0] != drawn[1]
    for anchors in drawn:
        assert anchors <= train | dev
        assert anchors & dev
    again = second.derivations[1].path.read_bytes()
    second.derivations[1].path.unlink()
    second.derivations[1].write()
    assert second.derivations[1].path.read_bytes() == again


def test_scored_rows_have_unjudged_negatives_and_standardised_scores(write_study: WriteStudy) -> None:
    cell = build(write_study({"teacher": True}))[0]
    assert all(isinstance(source, PairsSource) for source in [*cell.recipe.train.values(), *cell.recipe.dev.values()])
    assert not isinstance(cell.recipe.test["big"], PairsSource)
    file = next(
        file for file in cell.derivations if file.path.parent.name == "train-bm25" and "small" in file.path.name
    )
    file.write()
    rows = read_lines(file.path)
    assert len(rows) == 15
    # Queries are words of their own passages, which a teacher that knows anything ranks first.
    assert sum(row["pos_scores"][0] > row["neg_scores"][0] for row in rows) > 10
    for row in rows:
        scores = [*row["pos_scores"], *row["neg_scores"]]
        assert len(row["neg"]) == len(row["neg_scores"]) == NEGATIVES
        assert row["pos"][0] not in row["neg"]
        assert row["neg_scores"] == sorted(row["neg_scores"], reverse=True)
        assert sum(scores) == pytest.approx(0, abs=1e-2)
    assert read_rows(cell.recipe.train["small"]).rows["scores"][0] == pytest.approx(
        [*rows[0]["pos_scores"], *rows[0]["neg_scores"]]
    )


def test_trigrams_need_no_words() -> None:
    assert trigrams("Ab  cd") == ["ab ", "b c", " cd"]
    assert trigrams("長い文") == ["長い文"]
    assert trigrams("x") == ["x"]


def test_a_wrong_study_is_one_error(write_study: WriteStudy) -> None:
    with pytest.raises(RecipeError, match=r"study\.yaml: the label 'static 1' is there twice"):
        load_study(str(write_study(rows=[{"label": "static 1", "sampler": "static"}] * 2)))
    with pytest.raises(RecipeError, match=r"study\.yaml: rows\.0: unknown key 'sampelr'; did you mean 'sampler'"):
        load_study(str(write_study(rows=[{"label": "a", "sampelr": "static"}])))
    with pytest.raises(RecipeError, match="the setting 'twin' has no table 'fever' beside it"):
        load_study(str(write_study(rows=[{"label": "a", "sampler": "static", "table": "fever"}])))
    with pytest.raises(RecipeError, match="has no setting 'paper', it has twin"):
        load_study(str(write_study())).place("paper")
    with pytest.raises(RecipeError, match=r"no study of that name ships with mixfluence .*start-fever"):
        load_study("nothing")
