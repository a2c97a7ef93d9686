"""What readers of data want said is in the record of a run, and once below the tables of a study.

- Counts of rows and of test sets that are not as published are there with the name of the dataset; equal ones are not.
"""

from __future__ import annotations

import logging

import pytest

from mixfluence.runs import RECORD_FILE, read_record
from mixfluence.study import build_cells, find, load_study
from mixfluence.study.cell import run_cell
from tests.study.conftest import WriteStudy

pytestmark = pytest.mark.slow


def test_other_counts_than_published_reach_record_and_tables(
    write_study: WriteStudy, caplog: pytest.LogCaptureFixture
) -> None:
    changes = [
        "train={big: {published: {rows: 31}}, small: {published: {rows: 15}}}",
        "dev={small: {published: {rows: 16}}}",
        "test={big: {published: {queries: 30, passages: 91}}, small: {}}",
    ]
    twin = load_study(str(write_study())).settings["twin"].model_dump() | {"changes": changes}
    path = write_study(
        settings={"twin": twin}, seeds=1, rows=[{"label": name, "sampler": "static"} for name in ("one", "two")]
    )
    study, data = load_study(str(path)), path.parent / "elsewhere"
    cells = build_cells(study, study.place("twin"), path.parent / "out", data=data)
    # As a worker does.
    caplog.set_level(logging.ERROR, logger="mixfluence")
    for cell in cells:
        run_cell(cell, keep_models=False)
    expected = [
        f"train big: {data / 'tiny' / 'big'} train: 30 rows, but 31 were published",
        f"dev small: {data / 'tiny' / 'small'} dev: 15 rows, but 16 were published",
        "test big: 90 passages, but 91 were published",
    ]
    for cell in cells:
        assert read_record(cell.folder / RECORD_FILE)["notes"] == expected
    notes = find(study, "twin", cells, {}).notes
    assert [note for note in notes if "published" in note] == expected
