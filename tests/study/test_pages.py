"""Tables of a study, from scores that are written down here.

- Means, spreads and averages over columns are over seeds that have them; what is missing is said.
- The paper's numbers stand beside ours as printed, misprints marked and explained; rows a setting lacks are named.
- Notes of reading data are there once, however many runs made them.
- Samplers of one name but another rule are apart; a target without a training set is shown by the highest dataset.
- Of training sets drawn by seed, every seed is shown.
- The same numbers are in Markdown and, in full, in JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mixfluence.files import write_text
from mixfluence.paper import read_table
from mixfluence.recipe_yaml import dump_recipe
from mixfluence.report.tables import Sheet
from mixfluence.runs import RECIPE_FILE, RECORD_FILE, TRACE_FILE, WEIGHTS_FILE
from mixfluence.study import Cell, Findings, build_cells, find, load_study, to_json, to_markdown
from mixfluence.study.beside import paper_cell, paper_notes, paper_sheet
from mixfluence.study.schema import Row
from tests.study.conftest import WriteStudy


def finish(
    cell: Cell,
    scores: dict[str, float],
    hours: float = 1.0,
    mixtures: list[list[float]] | None = None,
    notes: object = (),
) -> None:
    """Leave behind what a finished run would have: mixtures hold from steps 0, 2, 4, ... on."""
    weights = [dict(zip(cell.recipe.train, mixture, strict=True)) for mixture in mixtures or [[0.5, 0.5]]]
    trace: list[dict[str, Any]] = [{"step": 0, "seconds": 0.0, "datasets": {}}]
    trace += [{"step": 2 * number, "seconds": 0.0, "weights": mixture} for number, mixture in enumerate(weights)]
    record = {
        **{"versions": {}, "device": "cpu", "datasets": {}, "selected_step": 0},
        "tests": {name: {"fingerprint": ""} for name in scores},
        "scores": {name: {"ndcg@10": value / 100} for name, value in scores.items()},
        "gpu_hours": {"train": hours, "evaluate": 5.0},
        "seconds": {"train": 3600 * hours},
        **({"notes": notes} if notes else {}),
    }
    for name in scores:
        line = {"query_id": "q", "ndcg@10": scores[name] / 100, "mrr@10": 0, "recall@100": 0, "map@100": 0}
        write_text(cell.folder / "eval" / f"{name}.jsonl", json.dumps(line) + "\n")
    write_text(cell.folder / RECIPE_FILE, dump_recipe(cell.recipe))
    write_text(cell.folder / TRACE_FILE, "".join(json.dumps(line) + "\n" for line in trace))
    write_text(cell.folder / WEIGHTS_FILE, json.dumps(weights[-1]))
    write_text(cell.folder / RECORD_FILE, json.dumps(record))


def prepare(path: Path) -> list[Cell]:
    study = load_study(str(path))
    return build_cells(study, study.place("twin"), path.parent / "out", data=path.parent / "elsewhere")


def tables(path: Path, cells: list[Cell]) -> Findings:
    return find(load_study(str(path)), "twin", cells, {})


def column(sheet: Sheet, head: str) -> list[str]:
    return next([cell.text + cell.mark for cell in found.cells] for found in sheet.columns if found.head == head)


def test_means_spreads_and_missing_cells(write_study: WriteStudy) -> None:
    path = write_study()
    cells = prepare(path)
    static, inf_dds, static_again, inf_dds_again = cells
    finish(static, {"big": 40.0, "small": 20.0})
    finish(static_again, {"big": 44.0, "small": 28.0})
    finish(inf_dds, {"big": 50.0, "small": 50.0}, hours=3.0)
    found = tables(path, cells)
    scores, cost, _ = found.sheets
    # Averages 30 and 36; the deviation of two values is their difference over the root of 2.
    assert column(scores, "average") == ["33.0 ± 4.2", "50.0"]
    assert column(scores, "big") == ["42.0 ± 2.8", "50.0"]
    assert column(scores, "small") == ["24.0 ± 5.7", "50.0"]
    assert column(scores, "runs") == ["2", "1 of 2"]
    assert column(cost, "total") == ["60.00", "180.00"]
    assert column(cost, "× static") == ["1.00", "3.00"]
    assert "runs side by side, which share a device" in cost.title
    assert any("1 cells are not finished" in note for note in found.notes)
    finish(inf_dds_again, {"big": 52.0, "small": 50.0}, hours=3.0)
    assert column(tables(path, cells).sheets[0], "average") == ["33.0 ± 4.2", "50.5 ± 0.7"]


def test_the_papers_numbers_stand_beside_ours_with_misprints_marked(write_study: WriteStudy) -> None:
    path = write_study()
    cells = prepare(path)
    finish(cells[0], {"big": 40.0, "small": 20.0})
    found = tables(path, cells)
    assert column(found.sheets[0], "the paper") == ["49.0†"]
    paper = found.sheets[-1]
    assert column(paper, "Quora")[0] == "49.0†"
    assert column(paper, "FEVER")[11] == "58.3*"
    assert any("† static, inf, Quora: likely 87.9." in note for note in found.notes)
    text = to_markdown(found)
    assert "49.0†" in text
    assert "likely 87.9" in text
    facts = json.loads(to_json(found), parse_constant=pytest.fail)
    assert facts["rows"][0]["average"] == {"mean": 30.0, "sd": None, "by_seed": [30.0]}
    assert facts["paper"]["sentence-transformers"][0]["labels"] == {"sampling": "static", "init": "inf"}


def test_a_row_finds_its_figure_in_the_first_table_or_in_the_one_it_names() -> None:
    tables = [read_table("beir5-individual"), read_table("beir5-joint")]
    found = {row.targets: paper_cell(tables, row).text for row in load_study("individual").rows if row.label == "doge"}
    assert found == {"each": "50.0", "jointly": "50.4"}


def test_a_mean_of_the_paper_has_its_deviation() -> None:
    row = Row(label="mix", sampler="static", paper={"trained_on": "mean"}, deviation={"trained_on": "deviation"})
    assert paper_cell([read_table("leakage-beir")], row).text == "46.3 ± 0.2"
    steps = Row(label="3", sampler="inf-dds", paper={"inner_steps": 3})
    assert paper_cell([read_table("inner-steps")], steps).text == "64.9 / 33.7"
    assert not paper_cell([], steps).text
    assert [len(found.cells) for found in paper_sheet(read_table("sizes-beir-dev")).columns] == [5, 5]
    assert any("33,510" in note for note in paper_notes(read_table("sizes-beir-dev")))


def test_rows_that_the_setting_lacks_are_named_with_the_papers_number(write_study: WriteStudy) -> None:
    rows = [
        {"label": "static 1", "sampler": "static", "init": 1},
        {"label": "clusters", "sampler": "crisp-32", "paper": {"sampling": "crisp", "clusters": 32}},
        {"label": "released", "reference": "released"},
    ]
    path = write_study(rows=rows)
    cells = prepare(path)
    finish(cells[0], {"big": 40.0, "small": 20.0})
    assert "Not in this setting: clusters (47.4 in the paper), released." in tables(path, cells).notes
    assert not any(note.startswith("Not in") for note in tables(write_study(), cells).notes)


def test_notes_of_reading_data_are_there_once(write_study: WriteStudy) -> None:
    path = write_study()
    cells = prepare(path)
    finish(cells[0], {"big": 40.0, "small": 20.0})
    assert not any("published" in note for note in tables(path, cells).notes)
    note = "test big: 30 queries, but 31 were published"
    for cell in cells[1:]:
        finish(cell, {"big": 40.0, "small": 20.0}, notes=[note])
    found = tables(path, cells)
    assert list(found.notes).count(note) == 1
    assert to_markdown(found).count(note) == 1


def test_every_seed_is_shown_of_training_sets_that_are_drawn(write_study: WriteStudy) -> None:
    rows = [{"label": "mix", "sampler": "static", "seeds": 3, "resampled": True}]
    path = write_study(rows=rows, views=["scores"])
    cells = prepare(path)
    finish(cells[2], {"big": 42.0, "small": 30.0})
    finish(cells[0], {"big": 40.0, "small": 20.0})
    scores, by_seed, _ = tables(path, cells).sheets
    assert column(scores, "average") == ["33.0 ± 4.2"]
    assert column(by_seed, "row") == ["mix, seed 0", "mix, seed 2"]
    assert column(by_seed, "average") == ["30.0", "36.0"]
    assert column(by_seed, "big") == ["40.0", "42.0"]


def test_heat_map_by_row_and_by_test_set(write_study: WriteStudy) -> None:
    rows = [{"label": "only", "sampler": "static", "train": "each", "seeds": 1}]
    path = write_study(rows=rows, views=["heat-map"])
    big, small = cells = prepare(path)
    finish(big, {"big": 60.0, "small": 10.0}, mixtures=[[1.0]])
    finish(small, {"big": 20.0, "small": 30.0}, mixtures=[[1.0]])
    by_row, by_test, _ = tables(path, cells).sheets
    assert column(by_row, "row") == ["only big", "only small"]
    assert (column(by_row, "big"), column(by_row, "small")) == (["1.00", "-1.00"], ["-1.00", "1.00"])
    assert (column(by_test, "big"), column(by_test, "small")) == (["1.00", "-1.00"], ["-1.00", "1.00"])


def test_stability_of_trajectories_by_hand(write_study: WriteStudy) -> None:
    rows = [
        {"label": f"{name} {init}", "sampler": name, "init": init, "targets": "each"}
        for name, init in (("inf-dds", 1), ("inf-dds", 5), ("static", 1))
    ]
    path = write_study(rows=rows, views=["trajectories", "weights"])
    cells = prepare(path)
    twice = {cell.name: cell for cell in cells}
    there, back = [[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]], [[0.5, 0.5], [0.75, 0.25], [0.5, 0.5]]
    for seed in (0, 1):
        finish(twice[f"inf-dds-1-for-big/{seed}"], {"big": 1.0}, mixtures=there)
        finish(twice[f"inf-dds-5-for-big/{seed}"], {"big": 1.0}, mixtures=back)
        finish(twice[f"static-1-for-big/{seed}"], {"big": 1.0})
    stability, trajectories, weights, _ = tables(path, cells).sheets
    # One start wanders 0, the other 0.5; they end 0.5 apart, and seeds at the same place.
    assert column(stability, "sampler") == ["inf-dds, each target alone"]
    assert column(stability, "wandering") == ["0.250"]
    assert column(stability, "disagreement over starts") == ["0.500"]
    assert column(stability, "disagreement over seeds") == ["0.000"]
    # Of 8 steps, 2 are a quarter.
    assert column(trajectories, "0% of the steps") == ["50.0", "50.0"]
    assert column(trajectories, "25% of the steps") == ["75.0", "75.0"]
    assert column(trajectories, "100% of the steps") == ["100.0", "50.0"]
    assert column(weights, "big") == ["100.0", "50.0"]


def test_samplers_of_one_name_and_another_rule_are_apart(write_study: WriteStudy) -> None:
    rule = {"name": "inf-dds", "update_every": 2, "warmup_steps": 2}
    rows = [
        {"label": "theirs 1", "sampler": "inf-dds", "init": 1, "seeds": 1},
        {"label": "theirs 5", "sampler": "inf-dds", "init": 5, "seeds": 1},
        {"label": "ours", "sampler": "inf-dds-ours", "init": 1, "seeds": 1},
        {"label": "two", "sampler": "inf-dds", "init": 1, "seeds": 1, "changes": ["strategy.subset=2"]},
    ]
    path = write_study({"samplers": {"inf-dds": rule, "inf-dds-ours": rule}}, rows=rows, views=["trajectories"])
    first, second, ours, two = cells = prepare(path)
    scores = {"big": 1.0, "small": 1.0}
    finish(first, scores, mixtures=[[0.5, 0.5], [0.75, 0.25]])
    finish(second, scores, mixtures=[[0.5, 0.5], [1.0, 0.0]])
    finish(ours, scores, mixtures=[[0.5, 0.5], [0.0, 1.0], [0.5, 0.5]])
    finish(two, scores, mixtures=[[0.5, 0.5], [0.25, 0.75], [0.5, 0.5]])
    stability, *_ = tables(path, cells).sheets
    assert column(stability, "sampler") == ["inf-dds", "inf-dds-ours", "inf-dds strategy.subset=2"]
    assert column(stability, "wandering") == ["0.000", "1.000", "0.500"]
    assert column(stability, "disagreement over starts") == ["0.250", "", ""]


def test_a_target_without_a_training_set_is_shown_by_the_highest_dataset(write_study: WriteStudy) -> None:
    sets = "{new: {path: data/tiny/small}, big: {}, newer: {path: data/tiny/small}}"
    twin = load_study(str(write_study())).settings["twin"].model_dump()
    twin |= {"changes": [f"dev={sets}", f"test={sets}"]}
    rows = [
        {"label": "both", "sampler": "inf-dds", "init": 1},
        {"label": "alone", "sampler": "inf-dds", "init": 1, "targets": "each", "seeds": 1},
    ]
    path = write_study(rows=rows, views=["trajectories"], settings={"twin": twin})
    cells = prepare(path)
    # Of the run for all, one seed ends with each dataset; the mean is for `small`.
    ends = {"both/0": [0.6, 0.4], "both/1": [0.2, 0.8], "alone-for-new/0": [0.9, 0.1]}
    for cell in cells:
        mixtures = [[0.5, 0.5], ends.get(cell.name, [0.3, 0.7])]
        finish(cell, dict.fromkeys(cell.recipe.test, 1.0), mixtures=mixtures)
    _, lines, _ = tables(path, cells).sheets
    assert "if it has none, of the dataset that ends highest" in lines.title
    assert list(
        zip(*(column(lines, head) for head in ("target", "row", "dataset", "100% of the steps")), strict=True)
    ) == [
        ("big", "both", "big", "40.0"),
        ("big", "alone, each target alone", "big", "30.0"),
        ("new, newer", "both", "small", "60.0"),
        ("new", "alone, each target alone", "big", "90.0"),
        ("newer", "alone, each target alone", "small", "70.0"),
    ]
