"""The study of raw starts.

- Its page shows the tables of the stored results, number by number.
- Its files describe the runs that were measured.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reproduction.cells import build_cells, load
from reproduction.raw_start import CONTROLS, read_lines, tables
from reproduction.schema import FOLDER, load_setting, load_study


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
    final = {(line["row"], line["seed"]): line for line in read_lines() if line["stage"] == "final"}
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
