"""Tables of a study, from scores written by hand.

- Means, spreads and averages over columns are over finished seeds; unfinished runs are counted.
- The paper's numbers are shown as printed, misprints marked and explained; rows that a setting lacks are named.
- Markdown and JSON have the same numbers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mixfluence.files import write_text
from mixfluence.recipe_yaml import dump_recipe
from mixfluence.runs import RECIPE_FILE, RECORD_FILE, TRACE_FILE, WEIGHTS_FILE
from reproduction.beside import paper_notes, paper_table, paper_value
from reproduction.cells import Cell, build_cells
from reproduction.findings import Findings, find
from reproduction.paper import read_table
from reproduction.schema import Row, load_study
from reproduction.trajectories import draw, trajectory_lines, write_figure
from tests.reproduction.conftest import WriteStudy


def finish(
    cell: Cell,
    scores: dict[str, float],
    hours: float = 1.0,
    mixtures: list[list[float]] | None = None,
    notes: object = (),
) -> None:
    """Write the run folder of a finished run; mixtures are in force from steps 0, 2, 4, ... on."""
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


def findings(path: Path, cells: list[Cell]) -> Findings:
    return find(load_study(str(path)), "twin", cells, {})


def test_means_spreads_and_missing_cells(write_study: WriteStudy) -> None:
    path = write_study()
    static, inf_dds, static_again, inf_dds_again = cells = prepare(path)
    finish(static, {"big": 40.0, "small": 20.0})
    finish(static_again, {"big": 44.0, "small": 28.0})
    finish(inf_dds, {"big": 50.0, "small": 50.0}, hours=3.0)
    found = findings(path, cells)
    scores, cost, _ = found.tables
    # Averages 30 and 36; the deviation of two values is their difference over the root of 2.
    assert scores.columns["average"] == ["33.0 ± 4.2", "**50.0**"]
    assert scores.columns["big"] == ["42.0 ± 2.8", "**50.0**"]
    assert scores.columns["runs"] == ["2", "1 of 2"]
    assert cost.columns["total"] == ["60.00", "180.00"]
    assert cost.columns["× static"] == ["1.00", "3.00"]
    assert any("1 runs are not finished" in note for note in found.notes)
    finish(inf_dds_again, {"big": 52.0, "small": 50.0}, hours=3.0)
    assert findings(path, cells).tables[0].columns["average"] == ["33.0 ± 4.2", "**50.5 ± 0.7**"]


def test_the_papers_numbers_stand_beside_ours_with_misprints_marked(write_study: WriteStudy) -> None:
    path = write_study()
    cells = prepare(path)
    finish(cells[0], {"big": 40.0, "small": 20.0})
    found = findings(path, cells)
    assert found.tables[0].columns["the paper"] == ["49.0†"]
    paper = found.tables[-1]
    assert paper.columns["Quora"][0] == "49.0†"
    assert paper.columns["FEVER"][11] == r"58.3\*"
    assert any("† static, inf, Quora: likely 87.9." in note for note in found.notes)
    text = found.to_markdown()
    assert "| static 1 | **30.0** |" in text
    assert "likely 87.9" in text
    facts = json.loads(found.to_json(), parse_constant=pytest.fail)
    assert facts["rows"][0]["average"] == {"mean": 30.0, "sd": None, "by_seed": [30.0]}
    assert facts["paper"]["sentence-transformers"][0]["labels"] == {"sampling": "static", "init": "inf"}


def test_a_row_finds_its_number_in_the_first_table_or_in_the_one_it_names() -> None:
    tables = [read_table("beir5-individual"), read_table("beir5-joint")]
    found = {row.targets: paper_value(tables, row) for row in load_study("individual").rows if row.label == "doge"}
    assert found == {"each": "50.0", "jointly": "50.4"}


def test_a_mean_of_the_paper_has_its_deviation() -> None:
    row = Row(label="mix", sampler="static", paper={"trained_on": "mean"}, deviation={"trained_on": "deviation"})
    assert paper_value([read_table("leakage-beir")], row) == "46.3 ± 0.2"
    steps = Row(label="3", sampler="inf-dds", paper={"inner_steps": 3})
    assert paper_value([read_table("inner-steps")], steps) == "64.9 / 33.7"
    assert not paper_value([], steps)
    assert list(map(len, paper_table(read_table("sizes-beir-dev")).columns.values())) == [5, 5]
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
    assert "Not in this setting: clusters (47.4 in the paper), released." in findings(path, cells).notes


def test_notes_of_reading_data_are_repeated_once(write_study: WriteStudy) -> None:
    path = write_study()
    cells = prepare(path)
    note = "test big: 30 queries, but 31 were published"
    for cell in cells:
        finish(cell, {"big": 40.0, "small": 20.0}, notes=[note])
    assert list(findings(path, cells).notes).count(note) == 1


def test_every_seed_of_a_resampled_row_is_shown(write_study: WriteStudy) -> None:
    rows = [{"label": "mix", "sampler": "static", "seeds": 3, "resampled": True}]
    path = write_study(rows=rows, views=["scores"])
    cells = prepare(path)
    finish(cells[2], {"big": 42.0, "small": 30.0})
    finish(cells[0], {"big": 40.0, "small": 20.0})
    scores, by_seed, _ = findings(path, cells).tables
    assert scores.columns["average"] == ["**33.0 ± 4.2**"]
    assert by_seed.columns == {
        "row": ["mix, seed 0", "mix, seed 2"],
        "average": ["30.0", "36.0"],
        "big": ["40.0", "42.0"],
        "small": ["20.0", "30.0"],
    }


def test_heat_map_by_row_and_by_test_set(write_study: WriteStudy) -> None:
    path = write_study(rows=[{"label": "only", "sampler": "static", "train": "each", "seeds": 1}], views=["heat-map"])
    big, small = cells = prepare(path)
    finish(big, {"big": 60.0, "small": 10.0}, mixtures=[[1.0]])
    finish(small, {"big": 20.0, "small": 15.0}, mixtures=[[1.0]])
    by_row, by_test, _ = findings(path, cells).tables
    assert by_row.columns == {"row": ["only big", "only small"], "big": ["1.00", "1.00"], "small": ["-1.00", "-1.00"]}
    assert by_test.columns == {"row": ["only big", "only small"], "big": ["1.00", "-1.00"], "small": ["-1.00", "1.00"]}


def test_stability_of_trajectories_by_hand(write_study: WriteStudy) -> None:
    rows = [
        {"label": f"{name} {init}", "sampler": name, "init": init, "targets": "each"}
        for name, init in (("inf-dds", 1), ("inf-dds", 5), ("static", 1))
    ]
    path = write_study(rows=rows, views=["trajectories", "weights"])
    cells = {cell.name: cell for cell in prepare(path)}
    there, back = [[0.5, 0.5], [0.75, 0.25], [1.0, 0.0]], [[0.5, 0.5], [0.75, 0.25], [0.5, 0.5]]
    for seed in (0, 1):
        finish(cells[f"inf-dds-1-for-big/{seed}"], {"big": 1.0}, mixtures=there)
        finish(cells[f"inf-dds-5-for-big/{seed}"], {"big": 1.0}, mixtures=back)
        finish(cells[f"static-1-for-big/{seed}"], {"big": 1.0})
    stability, trajectories, weights, _ = findings(path, list(cells.values())).tables
    # One start wanders 0, the other 0.5; they end 0.5 apart, and seeds at the same place.
    assert stability.columns == {
        "sampler": ["inf-dds, each target alone"],
        "wandering": ["0.250"],
        "disagreement over starts": ["0.500"],
        "disagreement over seeds": ["0.000"],
    }
    # Of 8 steps, 2 are a quarter.
    assert trajectories.columns["0% of the steps"] == ["50.0", "50.0"]
    assert trajectories.columns["25% of the steps"] == ["75.0", "75.0"]
    assert trajectories.columns["100% of the steps"] == ["100.0", "50.0"]
    assert weights.columns["big"] == ["100.0", "50.0"]


def test_variants_of_a_sampler_are_separate(write_study: WriteStudy) -> None:
    rule = {"name": "inf-dds", "update_every": 2, "warmup_steps": 2}
    rows = [
        {"label": "theirs 1", "sampler": "inf-dds", "init": 1, "seeds": 1},
        {"label": "theirs 5", "sampler": "inf-dds", "init": 5, "seeds": 1},
        {"label": "ours", "sampler": "inf-dds-ours", "init": 1, "seeds": 1},
        {"label": "two", "sampler": "inf-dds", "init": 1, "seeds": 1, "changes": ["strategy.subset=2"]},
    ]
    path = write_study({"samplers": {"inf-dds": rule, "inf-dds-ours": rule}}, rows=rows, views=["trajectories"])
    cells = prepare(path)
    ends = ([[0.75, 0.25]], [[1.0, 0.0]], [[0.0, 1.0], [0.5, 0.5]], [[0.25, 0.75], [0.5, 0.5]])
    for cell, later in zip(cells, ends, strict=True):
        finish(cell, {"big": 1.0, "small": 1.0}, mixtures=[[0.5, 0.5], *later])
    stability = findings(path, cells).tables[0].columns
    assert stability["sampler"] == ["inf-dds", "inf-dds-ours", "inf-dds strategy.subset=2"]
    assert stability["wandering"] == ["0.000", "1.000", "0.500"]
    assert stability["disagreement over starts"] == ["0.250", "", ""]


def test_a_target_without_a_training_set_is_shown_by_the_highest_dataset(write_study: WriteStudy) -> None:
    sets = "{new: {path: data/tiny/small}, big: {}, newer: {path: data/tiny/small}}"
    twin = load_study(str(write_study())).settings["twin"].model_dump() | {"changes": [f"dev={sets}", f"test={sets}"]}
    rows = [
        {"label": "both", "sampler": "inf-dds", "init": 1},
        {"label": "alone", "sampler": "inf-dds", "init": 1, "targets": "each", "seeds": 1},
    ]
    path = write_study(rows=rows, views=["trajectories"], settings={"twin": twin})
    cells = prepare(path)
    # Of the run for all, one seed ends with each dataset; the mean is highest for `small`.
    ends = {"both/0": [0.6, 0.4], "both/1": [0.2, 0.8], "alone-for-new/0": [0.9, 0.1]}
    for cell in cells:
        finish(cell, dict.fromkeys(cell.recipe.test, 1.0), mixtures=[[0.5, 0.5], ends.get(cell.name, [0.3, 0.7])])
    found = findings(path, cells)
    columns = found.tables[1].columns
    assert list(zip(*(columns[head] for head in ("target", "row", "dataset", "100% of the steps")), strict=True)) == [
        ("big", "both", "big", "40.0"),
        ("big", "alone, each target alone", "big", "30.0"),
        ("new, newer", "both", "small", "60.0"),
        ("new", "alone, each target alone", "big", "90.0"),
        ("newer", "alone, each target alone", "small", "70.0"),
    ]
    panels = draw(trajectory_lines(found.results.outcomes)).axes
    assert [panel.get_title() for panel in panels] == ["big", "new: highest dataset", "newer: highest dataset"]


def test_curves_of_the_figure_are_means_over_seeds(write_study: WriteStudy, tmp_path: Path) -> None:
    rows = [
        {"label": "static", "sampler": "static", "init": 1},
        {"label": "moves", "sampler": "inf-dds", "init": 1},
        {"label": "stays", "sampler": "inf-dds", "init": 5},
    ]
    path = write_study(rows=rows, views=["trajectories"])
    cells = prepare(path)
    # Of eight steps: from the start, from step 2 and from step 4 on.
    moves = {0: [[0.5, 0.5], [0.6, 0.4], [0.8, 0.2]], 1: [[0.5, 0.5], [0.4, 0.6], [0.4, 0.6]]}
    for cell in cells:
        mixtures = moves[cell.seed] if cell.row.label == "moves" else [[0.7, 0.3]]
        finish(cell, {"big": 1.0, "small": 1.0}, mixtures=mixtures)
    lines = trajectory_lines(findings(path, cells).results.outcomes)
    figure = draw(lines)
    big, small = figure.axes[:2]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["moves", "stays"]
    curve, constant, other = (
        np.asarray(drawn.get_ydata(), float) for drawn in (*big.get_lines(), small.get_lines()[0])
    )
    assert [curve[percent] for percent in (0, 24, 25, 49, 50, 100)] == pytest.approx([50, 50, 50, 50, 60, 60])
    assert set(constant) == {70.0}
    assert other == pytest.approx(100 - curve)
    assert [written.name for written in write_figure(lines, tmp_path, "try")] == ["try.svg", "try.pdf"]
