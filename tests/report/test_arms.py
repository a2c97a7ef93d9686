"""Runs that draw clusters of datasets, in status and on the page.

- Clusters are named with their typical terms, and datasets have their totals.
- Weights of clusters, final or average, are summed up by dataset.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from mixfluence.cli.runs import weights
from mixfluence.report.curves import dataset_states, final_weights, with_terms
from mixfluence.report.figures import charts_of_run
from mixfluence.report.status import read_status, status_view
from mixfluence.runs import read_run, read_trace

RUN = """\
name: arms
model: {name: wordllama}
defaults: {format: pydocs, library: "{name}"}
train: [numpy, scipy]
dev: [pandas]
strategy: {name: inf-dds, arms: {clusters: 2}}
training: {steps: 100, batch_size: 4}
"""
START = {"numpy/0": 0.3, "numpy/1": 0.2, "scipy/0": 0.5}
LATER = {"numpy/0": 0.7, "numpy/1": 0.1, "scipy/0": 0.2}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    facts = {"rows": 40, "distinct_positives": 40, "batch_size": 4}
    terms = {"numpy/0": ["array", "shape"], "numpy/1": ["random"]}
    datasets = {arm: facts | ({"terms": terms[arm]} if arm in terms else {}) for arm in START}
    influence = {"numpy/0": 0.02, "scipy/0": -0.01}
    update = {"seconds": 1.0, "memory": 3.0, "failed": [], "influence": influence, "on_targets": {"pandas": influence}}
    lines = [
        {"step": 0, "seconds": 0.0, "datasets": datasets},
        {"step": 5, "seconds": 6.0, "weights": START, "loss": 3.0, "trained": [0, 1], "rows": [4, 4]},
        {"step": 5, "seconds": 7.0, "weights": LATER, "update": update},
        {"step": 10, "seconds": 9.0, "weights": LATER, "loss": 2.5, "trained": [2, 0], "rows": [4, 4]},
    ]
    (tmp_path / "recipe.yaml").write_text(RUN, encoding="utf-8")
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return tmp_path


def test_status_shows_clusters_by_terms_and_totals_of_datasets(folder: Path) -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(status_view(read_status(folder)))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    rows = {line.split()[0].rstrip(":"): line for line in text.splitlines() if line.strip()}
    assert "array, shape" in rows["numpy/0"]
    assert "random" in rows["numpy/1"]
    assert "70.0%" in next(line for line in text.splitlines() if line.startswith("numpy/0") and "%" in line)
    assert "80.0%" in rows["numpy"]
    assert "20.0%" in rows["scipy"]


def test_the_page_draws_clusters_by_terms_and_totals_of_datasets(folder: Path) -> None:
    charts = {
        chart.title: {trace.get("name"): trace for trace in chart.data} for chart in charts_of_run(read_run(folder))
    }
    assert set(charts["Sampling probability of datasets"]) == {"numpy", "scipy"}
    assert charts["Sampling probability of datasets"]["numpy"]["y"][-1] == pytest.approx(0.8)
    assert set(charts["Sampling probability"]) == {"numpy/0: array, shape", "numpy/1: random", "scipy/0"}


def test_terms_are_added_to_every_name_and_change_nothing_else(folder: Path) -> None:
    trace = read_trace(folder / "trace.jsonl")
    named = with_terms(trace)
    assert named[2]["update"]["on_targets"] == {"pandas": {"numpy/0: array, shape": 0.02, "scipy/0": -0.01}}
    assert json.dumps(named).replace(": array, shape", "").replace(": random", "") == json.dumps(trace)
    assert with_terms([]) == []


def test_weights_are_summed_up_by_dataset(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = read_run(folder)
    assert final_weights(run) == pytest.approx({"numpy": 0.8, "scipy": 0.2})
    step, weights_then = dataset_states(run, run.trace)[0]
    assert (step, dict(weights_then)) == (0, {"numpy": 0.5, "scipy": 0.5})
    weights(folder, which="average")
    assert json.loads(capsys.readouterr().out) == pytest.approx({"numpy": 0.65, "scipy": 0.35})
