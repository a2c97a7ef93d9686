"""The figure of sampling trajectories.

- Each target has a panel, each row a curve in it: at every moment the mean over seeds of the mixtures in force.
- A mixture that never changes is a straight line; a target without a training set says that it shows another dataset.
- The command writes it beside the tables.
"""

from __future__ import annotations

import io
import shlex
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

from mixfluence.study.figure import draw_trajectories
from mixfluence.study.stability import trajectory_lines
from tests.hostile.workplace import Case, run_program
from tests.study.conftest import WriteStudy
from tests.study.test_pages import finish, prepare, tables

ROWS = [
    {"label": "static", "sampler": "static", "init": 1},
    {"label": "moves", "sampler": "inf-dds", "init": 1},
    {"label": "stays", "sampler": "inf-dds", "init": 5},
]
# Of eight steps: from the start, from step 2 and from step 4 on.
MOVES = {0: [[0.5, 0.5], [0.6, 0.4], [0.8, 0.2]], 1: [[0.5, 0.5], [0.4, 0.6], [0.4, 0.6]]}


@pytest.fixture
def finished(write_study: WriteStudy) -> Path:
    path = write_study(rows=ROWS, views=["trajectories"])
    for cell in prepare(path):
        finish(
            cell, {"big": 1.0, "small": 1.0}, mixtures=MOVES[cell.seed] if cell.row.label == "moves" else [[0.7, 0.3]]
        )
    return path


def test_curves_are_means_over_seeds_and_what_stays_is_straight(finished: Path) -> None:
    found = tables(finished, prepare(finished))
    figure = draw_trajectories(trajectory_lines(found.results.outcomes))
    big, small = figure.axes[:2]
    assert [panel.get_title() for panel in figure.axes if panel.get_visible()] == ["big", "small"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["moves", "stays"]
    moves, stays, rest = (np.asarray(curve.get_ydata(), float) for curve in (*big.get_lines(), small.get_lines()[0]))
    assert [moves[percent] for percent in (0, 24, 25, 49, 50, 100)] == pytest.approx([50, 50, 50, 50, 60, 60])
    assert set(stays) == {70.0}
    assert rest == pytest.approx(100 - moves)


def test_a_target_without_a_training_set_has_a_panel_too(finished: Path) -> None:
    found = tables(finished, prepare(finished))
    lines = trajectory_lines(found.results.outcomes)
    figure = draw_trajectories([line._replace(targets=("new", "newer")) for line in lines if line.dataset == "big"])
    titles = [panel.get_title() for panel in figure.axes if panel.get_visible()]
    assert titles == ["new: highest dataset", "newer: highest dataset"]


def test_the_command_draws(finished: Path) -> None:
    folder = finished.parent
    words = ("study", str(finished), "--setting", "twin", "--data", f"{folder}/elsewhere", "--output", f"{folder}/out")
    cells = prepare(finished)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as errors:
        assert run_program(Case("drawing", shlex.join(words)), folder) == 0
    assert f"0 cells to run, {len(cells)} are finished" in errors.getvalue()
    written = {path.name for path in (folder / "out").glob("try.*")}
    assert written == {"try.md", "try.json", "try.svg", "try.pdf"}
