"""Charts fit a column or a page of two, keep their text as text, and exist only for what has data."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mixfluence.report.figures import ONE_COLUMN, TWO_COLUMNS, all_charts, charts_of_run, write_charts
from mixfluence.runs import Run, read_run

SVG = "{http://www.w3.org/2000/svg}"
OLD = Path(__file__).parent / "old-runs"


@pytest.mark.slow
def test_every_chart_is_svg_and_pdf_in_a_width_that_fits(tmp_path: Path) -> None:
    written = write_charts(all_charts([read_run(OLD / name) for name in ("inf-dds", "doremi")]), tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted(written)
    stems = {path.stem for path in written}
    assert stems == {
        *("cost-quality", "time", "start", "loss", "weights"),
        *("sampling-inf-dds", "influence-inf-dds", "progress-inf-dds", "epochs-inf-dds"),
        *("sampling-doremi-reference", "sampling-doremi-proxy", "sampling-doremi-final"),
        *("progress-doremi", "epochs-doremi"),
    }
    for stem in stems:
        assert (tmp_path / f"{stem}.pdf").read_bytes().startswith(b"%PDF-")
        width = float(ElementTree.parse(tmp_path / f"{stem}.svg").getroot().attrib["width"].removesuffix("pt"))
        assert width / 72 in (pytest.approx(ONE_COLUMN, abs=0.01), pytest.approx(TWO_COLUMNS, abs=0.01))


@pytest.mark.slow
def test_text_is_text_whatever_it_holds(tmp_path: Path) -> None:
    path = shutil.copytree(OLD / "inf-dds", tmp_path / "_a $x_1$ & b")
    names = {"blue": "<script>alert(1)</script>", "red": "_$x$"}
    for changed in (path / "trace.jsonl", path / "weights.json"):
        text = changed.read_text(encoding="utf-8")
        for old, new in names.items():
            text = text.replace(f'"{old}"', f'"{new}"')
        changed.write_text(text, encoding="utf-8")
    charts = [chart for chart in all_charts([read_run(path)]) if chart.name.startswith(("sampling", "weights"))]
    assert len(write_charts(charts, tmp_path / "out")) == 4
    texts = set()
    for file in (tmp_path / "out").glob("*.svg"):
        root = ElementTree.parse(file).getroot()
        texts |= {"".join(element.itertext()).strip() for element in root.iter(f"{SVG}text")}
        sizes = re.findall(r"font-size: ([\d.]+)px", file.read_text(encoding="utf-8"))
        assert min(map(float, sizes)) >= 6
    assert {*names.values(), "green", "probability", "share of rows drawn", "_a $x_1$ & b"} <= texts


@pytest.mark.slow
def test_the_same_run_gives_the_same_files(tmp_path: Path) -> None:
    charts = charts_of_run("x", read_run(OLD / "doremi"))[:1]
    files = [write_charts(charts, tmp_path / name) for name in ("one", "other")]
    assert len(files[0]) == 2
    assert [path.read_bytes() for path in files[0]] == [path.read_bytes() for path in files[1]]


def test_what_has_no_data_has_no_chart() -> None:
    run = read_run(OLD / "inf-dds")
    assert all_charts([Run(run.path, run.recipe)]) == []


@pytest.mark.slow
def test_charts_of_every_method_are_drawn(runs: Path, tmp_path: Path) -> None:
    for name in ("doge", "crisp", "aioli", "killed"):
        charts = charts_of_run(name, read_run(runs / name))
        assert len(write_charts(charts, tmp_path)) == 2 * len(charts) > 4
