"""The cells of a study.

- Rows, targets and seeds are multiplied; a row for each target or each training set is narrowed to it.
- `--data` replaces the folder `data`; missing files are known before anything runs.
- Resampled rows are as many as before and come from train and dev; scored rows have unjudged negatives.
- An invalid study is one error that names the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mixfluence import RecipeError, read_rows
from mixfluence.data.beir import BeirSource
from mixfluence.data.pairs import PairsSource
from reproduction.cells import Cell, build_cells, missing_files
from reproduction.derived import NEGATIVES, trigrams
from reproduction.schema import load_study
from tests.reproduction.conftest import WriteStudy


def build(path: Path, **options: Any) -> list[Cell]:
    study = load_study(str(path))
    return build_cells(
        study, study.place("twin"), path.parent / "out", **{"data": path.parent / "elsewhere"} | options
    )


def test_rows_and_seeds_are_multiplied(write_study: WriteStudy) -> None:
    cells = build(write_study())
    assert [cell.name for cell in cells] == ["static-1/0", "inf-dds-1/0", "static-1/1", "inf-dds-1/1"]
    assert [cell.recipe.seed for cell in cells] == [0, 0, 1, 1]
    assert [cell.recipe.strategy.name for cell in cells] == ["static", "inf-dds"] * 2
    assert len(build(write_study(), seeds=3)) == 6
    assert {cell.recipe.training.steps for cell in build(write_study(), changes=["training.steps=4"])} == {4}


def test_rows_for_each_target_or_training_set_are_narrowed(write_study: WriteStudy) -> None:
    rows = [
        {"label": "alone", "sampler": "inf-dds", "targets": "each", "seeds": 1},
        {"label": "only", "sampler": "static", "train": "each", "seeds": 1},
        {"label": "zero-shot", "reference": "zero-shot"},
        {"label": "elsewhere", "sampler": "unknown here"},
    ]
    cells = build(write_study(rows=rows))
    names = ["alone-for-big", "alone-for-small", "only-big", "only-small", "zero-shot"]
    assert [cell.name for cell in cells] == [f"{name}/0" for name in names]
    for section in ("dev", "test"):
        assert [list(getattr(cell.recipe, section)) for cell in cells[:2]] == [["big"], ["small"]]
    assert [list(cell.recipe.train) for cell in cells[2:4]] == [["big"], ["small"]]


def test_starts_are_a_temperature_the_targets_own_or_the_experts(write_study: WriteStudy) -> None:
    def inits(rows: list[dict[str, Any]], setting: dict[str, Any] | None = None, **place: Any) -> list[str]:
        twin = load_study(str(write_study())).settings["twin"].model_dump() | place
        cells = build(write_study(setting, rows=rows, settings={"twin": twin}), seeds=1)
        return [repr(cell.recipe.strategy) for cell in cells]

    uniform = [{"label": "uniform", "sampler": "static", "init": float("inf")}]
    own = [{"label": "own", "sampler": "static", "targets": "each"}]
    found = inits(uniform + own, starts={"big": 0.3, "small": 5.0})
    assert ["inf" in found[0], "0.3" in found[1], "5.0" in found[2]] == [True] * 3
    expert = [{"label": "expert", "sampler": "static", "init": "expert"}]
    with pytest.raises(RecipeError, match="'expert'"):
        inits(expert)
    assert "101" in inits(expert, {"expert": {"big": 101.0, "small": 1.0}})[0]
    assert "'zh': 80" in inits(expert, {"expert": "mldr13"})[0]


def test_data_replaces_the_folder_data(write_study: WriteStudy) -> None:
    path = write_study()
    assert missing_files(build(path)) == []
    assert missing_files(build(path, data=None)) == [Path("data/tiny/big"), Path("data/tiny/small")]


def test_resampled_rows_are_as_many_and_from_train_and_dev(write_study: WriteStudy) -> None:
    first, second = build(write_study(rows=[{"label": "mix", "sampler": "static", "resampled": True}]))
    assert first.recipe.dev == {}
    assert missing_files([first, second]) == []
    drawn = []
    for cell in (first, second):
        for file in cell.derivations:
            file.write()
        drawn.append(set(read_rows(cell.recipe.train["small"]).rows["anchor"]))
    file = second.derivations[1]
    train, dev = (set(read_rows(source).rows["anchor"]) for source in file.sources)
    assert len(drawn[0]) == len(drawn[1]) == len(train) == 15
    assert drawn[0] != drawn[1]
    for anchors in drawn:
        assert anchors <= train | dev
        assert anchors & dev
    written = file.path.read_bytes()
    file.path.unlink()
    file.write()
    assert file.path.read_bytes() == written


def test_scored_rows_have_unjudged_negatives_and_standardised_scores(write_study: WriteStudy) -> None:
    cell = build(write_study({"teacher": True}))[0]
    sources = [*cell.recipe.train.values(), *cell.recipe.dev.values()]
    assert {type(source) for source in sources} == {PairsSource}
    assert type(cell.recipe.test["big"]) is BeirSource
    file = next(
        file for file in cell.derivations if file.path.parent.name == "train-bm25" and "small" in file.path.name
    )
    file.write()
    rows = [json.loads(line) for line in file.path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 15
    # Queries are words of their own passages, which BM25 should rank first.
    assert sum(row["pos_scores"][0] > row["neg_scores"][0] for row in rows) > 10
    for row in rows:
        assert len(row["neg"]) == len(row["neg_scores"]) == NEGATIVES
        assert row["pos"][0] not in row["neg"]
        assert row["neg_scores"] == sorted(row["neg_scores"], reverse=True)
        assert sum([*row["pos_scores"], *row["neg_scores"]]) == pytest.approx(0, abs=1e-2)
    scores = [*rows[0]["pos_scores"], *rows[0]["neg_scores"]]
    assert read_rows(cell.recipe.train["small"]).rows["scores"][0] == pytest.approx(scores)


def test_trigrams_need_no_words() -> None:
    assert trigrams("Ab  cd") == ["ab ", "b c", " cd"]
    assert trigrams("長い文") == ["長い文"]
    assert trigrams("x") == ["x"]


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ({"label": "static 1", "sampelr": "static"}, "sampelr"),
        ({"label": "inf-dds 1", "sampler": "static"}, "inf-dds 1"),
        ({"label": "a", "sampler": "static", "table": "fever"}, "fever"),
        ({"label": "a", "sampler": "static", "reference": "bm25"}, "rows.1"),
    ],
)
def test_an_invalid_study_is_an_error_that_names_the_file(
    write_study: WriteStudy, row: dict[str, str], named: str
) -> None:
    with pytest.raises(RecipeError, match=r"study\.yaml: ") as error:
        load_study(str(write_study(rows=[{"label": "inf-dds 1", "sampler": "inf-dds"}, row])))
    assert named in str(error.value)


def test_unknown_names_list_the_known_ones(write_study: WriteStudy) -> None:
    with pytest.raises(RecipeError, match="choose from twin"):
        load_study(str(write_study())).place("paper")
    with pytest.raises(RecipeError, match="start-fever"):
        load_study("nothing")
