"""Figures fit a column or a page of two, keep their text as text, and are there only for what there is."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from mixfluence.report.folders import read_run
from mixfluence.report.series import Report, collect

from mixfluence.report.figures import ONE_COLUMN, TWO_COLUMNS, write_figures

pytestmark = pytest.mark.slow

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def report(runs: Path) -> Report:
    return collect([read_run(runs / name) for name in ("static", "static-1", "doge", "killed")])


def test_every_figure_is_svg_and_pdf_in_a_width_that_fits(report: Report, tmp_path: Path) -> None:
    written = write_figures(report, tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(written)
    stems = {path.stem for path in written}
    stages = {"sampling-doge-proxy", "sampling-doge-second-proxy", "sampling-doge-training"}
    assert stems == stages | {f"sampling-{n}" for n in ("static", "static-1", "killed")} | {
        "cost-quality",
        "time",
        "weights",
    }
    for stem in stems:
        assert (tmp_path / f"{stem}.pdf").read_bytes().startswith(b"%PDF-")
        width = ElementTree.parse(tmp_path / f"{stem}.svg").getroot().attrib["width"]
        assert float(width.removesuffix("pt")) / 72 == pytest.approx(
            TWO_COLUMNS if stem.startswith("sampling") else ONE_COLUMN, abs=0.01
        )


def test_text_is_text_whatever_it_holds(report: Report, tmp_path: Path) -> None:
    odd = replace(report.runs[0], label="_a $x_1$ / b", finished=True)
    write_figures(replace(report, runs=[odd]), tmp_path)
    tree = ElementTree.parse(tmp_path / "sampling-_a-x_1-b.svg")
    texts = {"".join(element.itertext()).strip() for element in tree.iter(f"{SVG}text")}
    assert {"<script>alert(1)</script>", "big", "small", "probability", "drawn share of rows"} <= texts
    assert "_a $x_1$ / b" in (tmp_path / "weights.svg").read_text(encoding="utf-8")
    sizes = re.findall(r"font-size: ([\d.]+)px", (tmp_path / "weights.svg").read_text(encoding="utf-8"))
    assert sizes
    assert min(map(float, sizes)) >= 6


def test_the_same_runs_give_the_same_files(report: Report, tmp_path: Path) -> None:
    only = replace(report, runs=report.runs[:1], groups=report.groups[:1])
    files = [write_figures(only, tmp_path / name) for name in ("one", "other")]
    assert len(files[0]) == len(files[1]) == 6
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_what_has_no_data_has_no_figure(report: Report, tmp_path: Path) -> None:
    killed = next(run for run in report.runs if run.label == "killed")
    group = next(group for group in report.groups if group.label == "killed")
    bare = replace(report, runs=[replace(killed, trainings=[], weights={})], groups=[group])
    assert write_figures(bare, tmp_path / "none") == []
